// The network of a sandbox as a user has it: launcher and gate in a namespace of this test, an outside behind a cable.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>

#include <fstream>

#include "e2e/island.h"
#include "gate/outside.h"

namespace isola::e2e {
namespace {

// The launcher is started by this process, and so lives in its namespace.
class Net : public ::testing::Test {
 protected:
  void SetUp() override {
    NEEDS_TEMPLATE("minimal");
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    home_ = gate::own_netns();
    auto cable = gate::Cable::make();
    ASSERT_OK(cable);
    cable_ = std::move(*cable);
    ASSERT_EQ(::setns(cable_->gate.get(), CLONE_NEWNET), 0);
    auto outside = gate::Outside::open(cable_->outside);
    ASSERT_OK(outside);
    outside_ = std::move(*outside);
    outside_->set("a.example", {"203.0.113.10"});
    outside_->set("b.example", {"203.0.113.11"});
    island_ = std::make_unique<Island>(
        IslandOptions{.env = {std::string("ISOLA_NAME_SERVERS=") + gate::kNameServer + ":53"}});
  }
  void TearDown() override {
    island_.reset();
    outside_.reset();
    if (home_) {
      ASSERT_EQ(::setns(home_.get(), CLONE_NEWNET), 0);
    }
  }

  // Templates that were made before the gate name another resolver.
  static std::string script(const std::string& python) {
    return "echo nameserver 10.255.255.254 > /etc/resolv.conf; exec python3 -c '\n"
           "import socket, sys\n"
           "def greet(host, port=22):\n"
           "  try:\n"
           "    with socket.create_connection((host, port), 20) as s: return s.recv(100).decode().strip()\n"
           "  except OSError as e: return type(e).__name__\n" +
           python + "'";
  }
  Result<Talking> sandbox(launcher::Client& client) {
    return launch(client, {.digest = island_->digest(), .ephemeral = false});
  }
  static std::string python(Talking& box, const std::string& text) {
    auto heard = hear(*box.guest, {"sh", "-c", script(text)});
    return heard.out + heard.err;
  }
  pid_t gate_pid() {
    std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", island_->launcher_pid()));
    for (pid_t pid; children >> pid;) {
      std::ifstream comm(fmt::format("/proc/{}/comm", pid));
      std::string word;
      if (std::getline(comm, word) && word == "isola-gate") return pid;
    }
    return -1;
  }

  Fd home_;
  std::optional<gate::Cable> cable_;
  std::unique_ptr<gate::Outside> outside_;
  std::unique_ptr<Island> island_;
};

TEST_F(Net, OneCommandWithRules) {
  auto ask = script("print(greet(\"a.example\"), greet(\"b.example\"), greet(\"203.0.113.10\"))");
  auto done = island_->sh(ask, {"--net", "allow a.example:22"});
  EXPECT_EQ(done.out, "hello from 203.0.113.10 gaierror ConnectionResetError\n") << done.text();
  done = island_->sh(ask);
  EXPECT_EQ(done.out, "gaierror gaierror ConnectionRefusedError\n") << done.text();
  done = island_->sh(ask, {"--net", "all"});
  EXPECT_EQ(done.out, "hello from 203.0.113.10 hello from 203.0.113.11 hello from 203.0.113.10\n") << done.text();
  expect_complaint(island_->sh("true", {"--net", "allow nonsense!"}), 125, "line 1 of the policy");
}

TEST_F(Net, PoliciesChangeWhileItRuns) {
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  EXPECT_EQ(island_->isola({"net", "show", box->id}).code, 125) << "it has no policy yet";
  EXPECT_EQ(island_->isola({"net", "set", box->id, "none"}).code, 0);
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "gaierror\n");
  EXPECT_EQ(island_->isola({"net", "allow", box->id, "a.example"}).code, 0);
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "hello from 203.0.113.10\n");
  EXPECT_EQ(island_->isola({"net", "deny", box->id, "a.example:22"}).code, 0);
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "ConnectionResetError\n");
  auto shown = island_->isola({"net", "show", box->id});
  EXPECT_NE(shown.out.find("deny a.example:22\n  allow a.example\n  default deny"), std::string::npos) << shown.text();
  EXPECT_NE(shown.out.find("tcp a.example:22  policy (deny a.example:22)"), std::string::npos) << shown.text();
  EXPECT_NE(shown.out.find("a.example:22  1 connections"), std::string::npos) << shown.text();
  EXPECT_EQ(island_->isola({"net", "set", box->id, "none"}).code, 0);
  EXPECT_EQ(island_->isola({"net", "learn", box->id}).code, 0);
  EXPECT_EQ(python(*box, "print(greet(\"b.example\"))"), "hello from 203.0.113.11\n");
  EXPECT_EQ(island_->isola({"net", "learn", box->id}).out, "allow a.example:22\nallow b.example:22\ndefault deny\n");
  // A ceiling stays when the policy changes.
  auto set = client.set_policy({.id = box->id, .policy = "default allow", .ceiling = "allow a.example"});
  ASSERT_OK(set);
  EXPECT_EQ(island_->isola({"net", "set", box->id, "all"}).code, 0);
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"), greet(\"b.example\"))"), "hello from 203.0.113.10 gaierror\n");
  auto bad = client.set_policy({.id = "i00000000000000000000", .policy = ""});
  EXPECT_FALSE(bad);
  ASSERT_TRUE(client.kill(box->id));
}

TEST_F(Net, AKilledGateComesBackAsItWas) {
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  auto set = client.set_policy({.id = box->id, .policy = "allow a.example"});
  ASSERT_OK(set);
  for (int i = 0; i < 3; ++i) {
    pid_t before = gate_pid();
    ASSERT_GT(before, 0);
    EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "hello from 203.0.113.10\n");
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    ASSERT_TRUE(eventually([&] { return gate_pid() > 0 && gate_pid() != before; }));
    EXPECT_EQ(python(*box, "print(greet(\"a.example\"), greet(\"b.example\"))"), "hello from 203.0.113.10 gaierror\n");
  }
  ASSERT_TRUE(client.kill(box->id));
}

TEST_F(Net, ALauncherThatTakesOverGivesBackTheNetwork) {
  std::string id;
  {
    auto client = island_->client();
    auto box = sandbox(client);
    ASSERT_OK(box);
    id = box->id;
    auto set = client.set_policy({.id = id, .policy = "allow a.example"});
    ASSERT_OK(set);
    EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "hello from 203.0.113.10\n");
    island_->kill_launcher();
  }
  auto started = island_->start();
  ASSERT_OK(started);
  auto client = island_->client();
  auto link = client.link(id);
  ASSERT_OK(link);
  auto box = talk(id, std::move(*link));
  ASSERT_OK(box);
  ASSERT_TRUE(eventually([&] { return python(*box, "print(greet(\"a.example\"))") == "hello from 203.0.113.10\n"; }));
  EXPECT_EQ(python(*box, "print(greet(\"b.example\"))"), "gaierror\n");
  ASSERT_TRUE(client.kill(id));
}

TEST_F(Net, EventsReachWhoeverListens) {
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  auto watcher = island_->client();
  auto watching = watcher.watch_gate();
  ASSERT_OK(watching);
  auto set = client.set_policy({.id = box->id, .policy = "allow a.example"});
  ASSERT_OK(set);
  python(*box, "print(greet(\"b.example\"), greet(\"a.example\"))");
  auto denied = watcher.next_gate_event();
  ASSERT_OK(denied);
  EXPECT_EQ(denied->kind, gate::Event::Kind::denied);
  EXPECT_EQ(denied->name, "b.example");
  EXPECT_EQ(denied->sandbox, box->id);
  auto allowed = watcher.next_gate_event();
  while (allowed && allowed->kind != gate::Event::Kind::allowed) allowed = watcher.next_gate_event();
  ASSERT_OK(allowed);
  EXPECT_EQ(allowed->name, "a.example");
  EXPECT_EQ(allowed->address, "203.0.113.10");
  ASSERT_TRUE(client.kill(box->id));
}

}  // namespace
}  // namespace isola::e2e
