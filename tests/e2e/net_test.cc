// The network of a sandbox as a user has it: launcher and gate in a namespace of this test, an outside behind a cable.
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/file.h"
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
  auto learnt = island_->isola({"net", "learn", box->id}).out;
  EXPECT_TRUE(learnt.starts_with("# recorded since 20")) << learnt;
  EXPECT_EQ(learnt.substr(learnt.find('\n') + 1), "allow a.example:22\nallow b.example:22\ndefault deny\n");
  // A ceiling stays when the policy changes.
  auto set = client.set_policy({.id = box->id, .policy = "default allow", .ceiling = "allow a.example"});
  ASSERT_OK(set);
  EXPECT_EQ(island_->isola({"net", "set", box->id, "all"}).code, 0);
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"), greet(\"b.example\"))"), "hello from 203.0.113.10 gaierror\n");
  auto bad = client.set_policy({.id = "i00000000000000000000", .policy = ""});
  EXPECT_FALSE(bad);
  ASSERT_TRUE(client.kill(box->id));
}

// The sockets that a process has, by number.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> out;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/fd", pid), none)) {
    auto target = std::filesystem::read_symlink(entry.path(), none).string();
    if (target.starts_with("socket:")) out.insert(target);
  }
  return out;
}

TEST_F(Net, AKilledGateComesBackAsItWas) {
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  auto set = client.set_policy({.id = box->id, .policy = "allow a.example"});
  ASSERT_OK(set);
  auto best = std::chrono::milliseconds::max();
  for (int i = 0; i < 3; ++i) {
    pid_t before = gate_pid();
    ASSERT_GT(before, 0);
    EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "hello from 203.0.113.10\n");
    auto held = sockets_of(before);
    // One connection is open while the gate dies: it ends, and nothing that begins meanwhile gets anywhere else.
    std::string said;
    std::jthread open([&] {
      said = python(*box,
                    "s = socket.create_connection((\"a.example\", 7), 20)\n"
                    // The gate may die before the first answer is through, or after it.
                    "try: s.sendall(b\"x\"); s.recv(1); print(\"ended\", s.recv(1))\n"
                    "except OSError as e: print(\"ended\", type(e).__name__)\n"
                    "print(greet(\"203.0.113.11\"))");
    });
    // Both ends of it: those of the one before may only just be closing.
    ASSERT_TRUE(eventually([&] {
      auto now = sockets_of(before);
      return outside_->connections() > 0 &&
             std::count_if(now.begin(), now.end(), [&](const auto& one) { return !held.contains(one); }) >= 2;
    }));
    auto killed = std::chrono::steady_clock::now();
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    // It answers for the sandbox again: asked at once, and the answer waits for it.
    auto report = client.gate_report(box->id);
    auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - killed);
    ASSERT_OK(report);
    EXPECT_NE(report->find("allow a.example"), std::string::npos) << *report;
    best = std::min(best, took);
    open.join();
    EXPECT_TRUE(said == "ended b\'\'\nConnectionResetError\n" ||
                said == "ended ConnectionResetError\nConnectionResetError\n")
        << said;
    pid_t now = gate_pid();
    ASSERT_GT(now, 0);
    EXPECT_NE(now, before);
    auto after = sockets_of(now);
    size_t same = std::count_if(held.begin(), held.end(), [&](const auto& one) { return after.contains(one); });
    EXPECT_GE(same, 6U) << "the sandbox's own sockets: TCP, UDP and TCP for questions, in two families";
    EXPECT_EQ(python(*box, "print(greet(\"a.example\"), greet(\"b.example\"))"), "hello from 203.0.113.10 gaierror\n");
  }
  std::printf("back after %lld ms, the best of three\n", static_cast<long long>(best.count()));
  EXPECT_LT(best, std::chrono::seconds(1));
  ASSERT_TRUE(client.kill(box->id));
}

TEST_F(Net, PoliciesAreWrittenDownWhenTheGateHasTakenThem) {
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  std::string file = island_->data() + "/gate/" + box->id;
  auto set = client.set_policy({.id = box->id, .policy = "allow a.example"});
  ASSERT_OK(set);
  auto kept = read_file(file);
  ASSERT_OK(kept);
  // A gate that does not answer takes nothing: then nothing is written, and whoever asked is told to try again.
  pid_t gate = gate_pid();
  ASSERT_EQ(::kill(gate, SIGSTOP), 0);
  set = client.set_policy({.id = box->id, .policy = "allow b.example"});
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().code, Code::unavailable) << set.error().message;
  auto report = client.gate_report(box->id);
  ASSERT_FALSE(report);
  EXPECT_EQ(report.error().code, Code::unavailable) << "not: there is no such thing";
  EXPECT_EQ(read_file(file).value_or(""), *kept);
  // What it takes after all is written down after all.
  ASSERT_EQ(::kill(gate, SIGCONT), 0);
  ASSERT_TRUE(eventually([&] { return read_file(file).value_or("") != *kept; }));
  report = client.gate_report(box->id);
  ASSERT_OK(report);
  EXPECT_NE(report->find("allow b.example"), std::string::npos) << *report;
  // One that cannot be written down does not stay in force.
  kept = read_file(file);
  std::filesystem::rename(island_->data() + "/gate", island_->data() + "/gate-away");
  {
    std::ofstream in_the_way(island_->data() + "/gate");
  }
  set = client.set_policy({.id = box->id, .policy = "default allow"});
  EXPECT_FALSE(set);
  report = client.gate_report(box->id);
  ASSERT_OK(report);
  EXPECT_EQ(report->find("default allow"), std::string::npos) << *report;
  std::filesystem::remove(island_->data() + "/gate");
  std::filesystem::rename(island_->data() + "/gate-away", island_->data() + "/gate");
  ASSERT_TRUE(client.kill(box->id));
  EXPECT_FALSE(std::filesystem::exists(file));
}

// What allows nothing needs no gate to be in force, and one that only comes first undoes nothing.
TEST_F(Net, AClosedSandboxWaitsForNoGate) {
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  auto set = client.set_policy({.id = box->id, .first = true});
  ASSERT_OK(set);
  auto report = client.gate_report(box->id);
  ASSERT_OK(report);
  EXPECT_EQ(python(*box, "print(greet(\"203.0.113.10\"))"), "ConnectionResetError\n");
  EXPECT_TRUE(eventually([&] {
    auto now = client.gate_report(box->id);
    return now && now->find("203.0.113.10") != std::string::npos;
  }));
  set = client.set_policy({.id = box->id, .policy = "allow a.example"});
  ASSERT_OK(set);
  set = client.set_policy({.id = box->id, .first = true});
  ASSERT_OK(set);
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "hello from 203.0.113.10\n");
  // A gate that hangs keeps nobody waiting for what is closed; after a while it is replaced.
  pid_t hung = gate_pid();
  ASSERT_EQ(::kill(hung, SIGSTOP), 0);
  auto other = sandbox(client);
  ASSERT_OK(other);
  auto begun = std::chrono::steady_clock::now();
  set = client.set_policy({.id = other->id, .first = true});
  ASSERT_OK(set);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(4));
  EXPECT_TRUE(eventually([&] { return gate_pid() > 0 && gate_pid() != hung; }, std::chrono::seconds(60)));
  ::kill(hung, SIGCONT);  // if it is still there
  EXPECT_EQ(python(*box, "print(greet(\"a.example\"))"), "hello from 203.0.113.10\n");
  report = client.gate_report(other->id);
  ASSERT_OK(report);
}

TEST_F(Net, ADeniedNameIsNotAskedForAtALiteralAddress) {
  std::string hello =
      "c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE\n"
      "def ask(name):\n"
      "  try:\n"
      "    with socket.create_connection((\"203.0.113.10\", 443), 20) as s:\n"
      "      c.wrap_socket(s, server_hostname=name)\n"
      "  except OSError as e: return type(e).__name__\n";
  auto client = island_->client();
  auto box = sandbox(client);
  ASSERT_OK(box);
  auto set = client.set_policy({.id = box->id, .policy = "deny b.example\ndefault allow"});
  ASSERT_OK(set);
  // The server there is an echo: who gets through to it hears his own hello, and does not understand it.
  EXPECT_EQ(python(*box, "import ssl\n" + hello + "print(ask(\"a.example\"), ask(\"b.example\"))"),
            "SSLError ConnectionResetError\n");
  auto report = client.gate_report(box->id);
  ASSERT_OK(report);
  EXPECT_NE(report->find("b.example at 203.0.113.10"), std::string::npos) << *report;
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
