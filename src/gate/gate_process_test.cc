// The gate as a process: killed and back, sandboxes taken away, and what it gave up.
#include <sys/resource.h>

#include "base/file.h"
#include "gate/gate_fixture.h"
#include "gate/scan_frames.h"
#include "vault/binding_wire.h"
#include "vault/seal.h"

namespace isola::gate::testing {
namespace {

TEST_F(GateTest, KilledAndBackWithTheSameSockets) {
  Box box = world->box("allow a.example");
  auto address = box.run([] { return resolve("a.example"); });
  int to[2], from[2];
  ASSERT_EQ(::pipe(to), 0);
  ASSERT_EQ(::pipe(from), 0);
  std::string how;
  std::thread inside([&] {
    how = box.run([&] {
      Fd fd = dial(address, kEchoPort);
      char c = 'x';
      (void)!::send(fd.get(), &c, 1, MSG_NOSIGNAL);
      if (::recv(fd.get(), &c, 1, 0) != 1 || ::write(from[1], &c, 1) != 1) return "never open"s;
      return read_to_end(fd);  // it ends when the gate does
    });
  });
  char c = 0;
  ASSERT_EQ(::read(from[0], &c, 1), 1);
  world->stop_gate(SIGKILL);
  inside.join();
  EXPECT_EQ(how, "") << "the open connection ended with it";
  size_t before = world->outside->connections();
  // Nobody answers now, and nothing gets out: a connection waits at the door, and finds nobody behind it later.
  std::thread early([&] { how = box.run([&] { return talk_to("203.0.113.10", kEchoPort, "x"); }); });
  world->start_gate();
  EXPECT_EQ(world->add(box, "allow b.example"), "");
  early.join();
  EXPECT_EQ(how, "ECONNRESET");
  EXPECT_EQ(world->outside->connections(), before);
  EXPECT_EQ(box.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([&] { return talk_to(address, kEchoPort, "x"); }), "ECONNRESET") << "old answers mean nothing";
  for (int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
}

// Values that an earlier gate had and that this one cannot open: nobody can say what comes out of the sandbox then.
TEST_F(GateTest, WithoutAllThatAnEarlierGateHadNothingPasses) {
  auto key = vault::KeyPair::make().value(), another = vault::KeyPair::make().value();
  auto sealed_to = [](const vault::KeyPair& whose) {
    vault::Binding one{.id = "b1", .secret = "s", .names = {"a.example"}};
    one.sealed = vault::seal(whose.open_key(), "correct-horse").value();
    return vault::encode_bindings({one});
  };
  Box box = world->box("allow a.example");
  auto pair = kernel::socket_pair().value();
  ASSERT_EQ(world->call(ControlOp::scan, "", {pair.second.get()}), "");
  uint64_t stream = 0;
  auto answer = [&](const std::string& past) {
    EXPECT_EQ(world->add(box, "allow a.example", "", "", "", past), "");
    ++stream;
    EXPECT_TRUE(kernel::send_message(pair.first.get(), encode_open({.stream = stream, .sandboxes = {box.id}})));
    EXPECT_TRUE(kernel::send_message(pair.first.get(),
                                     encode_data_head({.stream = stream, .flags = ScanData::kEnd}) + "correct-horse"));
    ScanReply reply;
    while (reply.stream != stream) {
      auto message = kernel::receive_message(pair.first.get(), kMaxScanMessage);
      if (!message || message->bytes.empty()) return ScanReply{};
      Reader in(message->bytes);
      while (in.ok() && !in.done() && reply.stream != stream) decode(in, reply);
    }
    return reply;
  };
  EXPECT_EQ(answer(sealed_to(key)).what, ScanAnswer::unready) << "the key is not here yet";
  ASSERT_EQ(world->give_key(key.secret_key().view()), "");
  auto found = answer(sealed_to(key));
  EXPECT_EQ(found.what, ScanAnswer::decided);
  EXPECT_EQ(found.blots.size(), 1u);
  EXPECT_EQ(answer(sealed_to(another)).what, ScanAnswer::unready);
  EXPECT_EQ(answer("no list").what, ScanAnswer::unready);
  EXPECT_EQ(answer("").what, ScanAnswer::decided);
}

TEST_F(GateTest, NoneOfItsMemoryIsSwapped) {
  rlimit before{}, much{RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(::getrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (::setrlimit(RLIMIT_MEMLOCK, &much) < 0) GTEST_SKIP() << "this machine does not let memory be locked";
  world->stop_gate();
  world->start_gate();
  Box box = world->box("allow a.example");  // it is at work
  auto status = read_file("/proc/" + std::to_string(world->gate()) + "/status").value();
  ASSERT_EQ(::setrlimit(RLIMIT_MEMLOCK, &before), 0);
  auto kilobytes = [&](const std::string& what) { return std::stoul(status.substr(status.find(what) + what.size())); };
  EXPECT_GT(kilobytes("VmLck:"), 0u);
  EXPECT_GE(kilobytes("VmLck:"), kilobytes("RssAnon:"));
}

TEST_F(GateTest, NewNameServersOfTheHostAreUsedAtOnce) {
  std::string file = ::testing::TempDir() + "/resolv.conf." + std::to_string(::getpid());
  // Written over, as the file that is bound stays the same one.
  auto write = [&](const std::string& server) {
    Fd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    std::string text = "nameserver " + server + "\noptions timeout:30 attempts:1\n";
    ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  // Somebody who hears the questions and never answers.
  const char* const silent_server = "198.51.100.7";
  Fd silent;
  in_netns(world->outside_netns(), [&] {
    silent = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    auto address = Address::parse(silent_server).value().with_port(53);
    ASSERT_EQ(::bind(silent.get(), address.get(), address.size), 0);
  });
  write(silent_server);
  world->stop_gate();
  world->start_gate({.resolv_conf = file});
  Box box = world->box("allow *.example");
  std::string early;
  std::thread inside([&] { early = box.run([] { return talk("a.example", kEchoPort, "x"); }); });
  pollfd asked{silent.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&asked, 1, kLongMs), 1);
  write(kNameServer);
  EXPECT_EQ(box.run([] { return talk("b.example", kEchoPort, "y"); }), "y");
  inside.join();
  EXPECT_EQ(early, "x") << "the question that was under way is asked again";
  ::unlink(file.c_str());
}

TEST_F(GateTest, ARemovedSandboxIsCutOff) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(world->remove(box), "");
  EXPECT_EQ(world->report(box), "the gate knows no sandbox " + box.id);
  size_t before = world->outside->connections();
  EXPECT_EQ(box.run([] {
    // Whoever sits in the namespace still has the addresses; nobody takes the connection any more.
    Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    timeval soon{.tv_sec = 0, .tv_usec = 300'000};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &soon, sizeof soon);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon);
    auto address = Address::parse("203.0.113.10").value().with_port(kEchoPort);
    char c = 'x';
    if (::connect(fd.get(), address.get(), address.size) < 0) return "nothing"s;
    (void)!::send(fd.get(), &c, 1, MSG_NOSIGNAL);
    return ::recv(fd.get(), &c, 1, 0) == 1 ? "answered"s : "nothing"s;
  }),
            "nothing");
  EXPECT_EQ(world->outside->connections(), before);
  EXPECT_EQ(world->call(ControlOp::report, "nonsense"), "unreadable request");
}

TEST_F(GateTest, HasNothingToLose) {
  Box box = world->box("allow a.example");
  auto status = read_file("/proc/" + std::to_string(world->gate()) + "/status").value();
  for (const char* line :
       {"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1"})
    EXPECT_NE(status.find(line), std::string::npos) << line << "\n" << status;
  EXPECT_EQ(status.find("Uid:\t0"), std::string::npos);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_NE(status.find("Seccomp:\t2"), std::string::npos);
#endif
}

}  // namespace
}  // namespace isola::gate::testing
