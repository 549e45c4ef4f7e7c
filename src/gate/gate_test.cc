// The gate as a process, with sandboxes on one side and an outside on the other.
#include "gate/gate.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <list>

#include "base/file.h"
#include "gate/dns.h"
#include "gate/flow.h"
#include "gate/test_world.h"

namespace isola::gate::testing {
namespace {

class GateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    world.emplace();
    world->outside->set("a.example", {"203.0.113.10"});
    world->outside->set("b.example", {"203.0.113.11"});
    world->outside->set("six.example", {"2001:db8:5::10"});
    world->outside->set("both.example", {"203.0.113.10", "2001:db8:5::10"});
  }
  std::optional<World> world;
};

TEST_F(GateTest, ByNameAndBackInBothFamilies) {
  Box box = world->box("allow *.example");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "hello"); }), "hello");
  EXPECT_EQ(box.run([] { return talk("six.example", kEchoPort, "hello six"); }), "hello six");
  EXPECT_EQ(box.run([] { return talk_to(resolve("both.example", 28), kEchoPort, "by six"); }), "by six");
  EXPECT_EQ(box.run([] { return talk("b.example", kGreetPort, ""); }), "hello from 203.0.113.11\n");
  EXPECT_EQ(box.run([] { return resolve("a.example", 1, true); }).substr(0, 5), "198.1");
  auto event = world->next(Event::Kind::closed);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->name, "a.example");
  EXPECT_EQ(event->address, "203.0.113.10");
  EXPECT_EQ(event->up, 5U);
  EXPECT_EQ(event->down, 5U);
}

TEST_F(GateTest, NothingWithoutAPolicyThatSaysSo) {
  Box box = world->box("");
  EXPECT_EQ(box.run([] { return resolve("a.example"); }), "code 3");
  EXPECT_EQ(world->next_denial(), "policy a.example:53");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.10", kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy 203.0.113.10:7");
  EXPECT_TRUE(world->outside->asked().empty());
  EXPECT_EQ(world->outside->connections(), 0U);
}

TEST_F(GateTest, RulesByNamePortAndNetwork) {
  Box box = world->box("allow a.example:7\nallow 203.0.113.11:7");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk("a.example", kGreetPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy a.example:22");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.11", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.10", kEchoPort, "x"); }), "ECONNRESET")
      << "the address of a name that is allowed is not allowed by itself";
  EXPECT_EQ(world->next_denial(), "policy 203.0.113.10:7");
}

TEST_F(GateTest, AnothersSyntheticAddressMeansNothingHere) {
  Box one = world->box("allow a.example"), two = world->box("allow b.example");
  auto address = one.run([] { return resolve("a.example"); });
  EXPECT_EQ(one.run([&] { return talk_to(address, kEchoPort, "x"); }), "x");
  EXPECT_EQ(two.run([&] { return talk_to(address, kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "unknown-address " + address + ":7");
}

TEST_F(GateTest, InsidePlacesAreNotReachedByAnyName) {
  for (const char* place : {"10.5.0.1", "169.254.169.254", "100.64.0.9", "fd00:ec2::254", "127.0.0.1", "::1",
                            "64:ff9b::a05:1", "0.0.0.0", "192.0.2.1"}) {
    world->outside->set("rebind.example", {place});
    Box box = world->box("default allow");
    EXPECT_EQ(box.run([] { return talk("rebind.example", kEchoPort, "x"); }), "ECONNRESET") << place;
    auto denial = world->next_denial();
    EXPECT_TRUE(denial == "place rebind.example:7" || denial == "own-address rebind.example:7") << place << denial;
    EXPECT_EQ(world->outside->connections(), 0U) << place;
  }
  world->outside->set("inside.example", {"10.5.0.1"});
  Box named = world->box("allow inside.example local\nallow 169.254.169.254");
  EXPECT_EQ(named.run([] { return talk("inside.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(named.run([] { return talk_to("169.254.169.254", kEchoPort, "x"); }), "x");
}

TEST_F(GateTest, TheAddressThatCountsIsTheOneConnectedTo) {
  world->outside->set("rebind.example", {"203.0.113.10"});
  Box box = world->box("allow rebind.example");
  auto address = box.run([] { return resolve("rebind.example"); });
  world->outside->set("rebind.example", {"169.254.169.254"});
  // Whatever the gate's own answer is by then (kept or asked again), the connection never goes inside.
  EXPECT_EQ(box.run([&] { return talk_to(address, kGreetPort, ""); }), "hello from 203.0.113.10\n");
}

TEST_F(GateTest, TlsMustSayTheName) {
  Box box = world->box("allow a.example");
  auto good = tls_hello("a.example");
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, good); }), good);
  auto event = world->next(Event::Kind::allowed);
  ASSERT_TRUE(event);
  EXPECT_TRUE(event->host_verified);
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, good, 1); }), good) << "one byte at a time";
  auto huge = tls_hello("a.example", "\x00\x29\xc3\x50"s + std::string(50000, 'p'));
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, huge, 777); }), huge);

  EXPECT_EQ(box.run([] { return talk("a.example", kTlsPort, tls_hello("b.example")); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs a.example:443");
  EXPECT_EQ(box.run([] { return talk("a.example", kTlsPort, tls_hello("")); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-missing a.example:443");
  EXPECT_EQ(box.run([] { return talk("a.example", kTlsPort, tls_hello("a.example", "\xfe\x0d\0\1x"s)); }),
            "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "ech a.example:443");
  EXPECT_EQ(box.run([] { return talk("a.example", 7, tls_hello("a.example\0.b"s), 3); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "bad-hello a.example:7");
  EXPECT_EQ(box.run([] { return talk("a.example", 7, tls_hello("a.example").substr(0, 30)); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "bad-hello a.example:7");

  Box open = world->box("default allow");
  auto other = tls_hello("b.example");
  EXPECT_EQ(open.run([&] { return talk("a.example", kTlsPort, other); }), other);
}

TEST_F(GateTest, ANewPolicyHoldsForTheNextConnectionOrCutsAll) {
  Box box = world->box("allow a.example");
  auto address = box.run([] { return resolve("a.example"); });
  int to[2], from[2];
  ASSERT_EQ(::pipe(to), 0);
  ASSERT_EQ(::pipe(from), 0);
  std::thread inside([&] {
    box.run([&] {
      Fd fd = dial(address, kEchoPort);
      char c = 0;
      for (;;) {
        if (::read(to[0], &c, 1) != 1) return ""s;
        ssize_t n = ::send(fd.get(), &c, 1, MSG_NOSIGNAL);
        if (n == 1) n = ::recv(fd.get(), &c, 1, 0);
        if (n != 1) c = '!';
        if (::write(from[1], &c, 1) != 1 || c == '!') return ""s;
      }
    });
  });
  auto echo = [&](char c) {
    (void)!::write(to[1], &c, 1);
    (void)!::read(from[0], &c, 1);
    return c;
  };
  EXPECT_EQ(echo('1'), '1');
  EXPECT_EQ(world->set_policy(box, "allow b.example"), "");
  EXPECT_EQ(echo('2'), '2') << "what is there stays";
  EXPECT_EQ(box.run([&] { return talk_to(address, kEchoPort, "x"); }), "ECONNRESET");
  EXPECT_EQ(box.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(world->set_policy(box, "allow b.example:7", true), "");
  EXPECT_EQ(echo('3'), '!');
  EXPECT_NE(world->set_policy(box, "allow nonsense nonsense"), "");
  inside.join();
  for (int fd : {to[0], to[1], from[0], from[1]}) ::close(fd);
}

TEST_F(GateTest, LimitsOfConnections) {
  Box box = world->box("allow a.example\nlimit connections 4\nlimit connections-per-second 1000");
  auto text = box.run([] {
    auto address = resolve("a.example");
    std::vector<Fd> held;
    std::string out;
    for (int i = 0; i < 6; ++i) {
      held.push_back(dial(address, kEchoPort));
      char c = 'x';
      (void)!::send(held.back().get(), &c, 1, MSG_NOSIGNAL);
      out += ::recv(held.back().get(), &c, 1, 0) == 1 ? "+" : "-";
    }
    held.pop_back(), held.pop_back();
    ::shutdown(held[0].get(), SHUT_WR);
    if (read_to_end(held[0]) != "") out += "?";
    return out;
  });
  EXPECT_EQ(text, "++++--");
  EXPECT_EQ(world->next_denial(), "too-many-connections a.example:7");
  Box slow = world->box("allow a.example\nlimit connections-per-second 1");
  auto counted = slow.run([] {
    auto address = resolve("a.example");
    int good = 0;
    for (int i = 0; i < 60; ++i) good += talk_to(address, kEchoPort, "x") == "x";
    return std::to_string(good);
  });
  EXPECT_LT(std::stoi(counted), 40);
  EXPECT_GE(std::stoi(counted), 16);
  EXPECT_EQ(world->next_denial(), "too-fast a.example:7");
}

// The packet rules bound questions by UDP before the gate does; over TCP only the gate counts them.
TEST_F(GateTest, LimitsOfQuestions) {
  Box box = world->box("allow a.example");
  constexpr int kQuestions = 3000;
  auto counted = box.run([] {
    Fd fd = dial(boundary::kOwnAddress4, 53);
    auto one = framed(make_query("a.example", 1));
    std::thread writer([&] {
      for (int i = 0; i < kQuestions; ++i)
        if (::send(fd.get(), one.data(), one.size(), MSG_NOSIGNAL) < 0) return;
    });
    std::string stream;
    char buffer[65536];
    int answered = 0, refused = 0;
    while (answered + refused < kQuestions) {
      ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
      if (n <= 0) break;
      stream.append(buffer, static_cast<size_t>(n));
      for (auto reply = take_framed(stream); reply && *reply; reply = take_framed(stream))
        ++(read_answer(**reply, 1) == "code 5" ? refused : answered);
    }
    writer.join();
    return std::to_string(answered) + " " + std::to_string(refused);
  });
  int answered = 0, refused = 0;
  ASSERT_EQ(std::sscanf(counted.c_str(), "%d %d", &answered, &refused), 2) << counted;
  EXPECT_EQ(answered + refused, kQuestions);
  EXPECT_GE(answered, 1000);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(world->next_denial(), "dns-rate a.example:53");
}

TEST_F(GateTest, FewStreamsOfQuestionsAtATime) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] {
    std::vector<Fd> held;
    for (int i = 0; i < 15; ++i) held.push_back(dial(boundary::kOwnAddress4, 53));
    auto last = resolve("a.example", 1, true);
    if (!is_address(last)) return "the sixteenth: " + last;
    for (int i = 0; i < 2; ++i) held.push_back(dial(boundary::kOwnAddress4, 53));
    return is_address(resolve("a.example", 1, true)) ? "one more than sixteen"s : "refused"s;
  }),
            "refused");
}

TEST_F(GateTest, WhatIsTooLargeForAQuestionIsNotRead) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] {
    Fd fd = dial(boundary::kOwnAddress4, 53, SOCK_DGRAM);
    auto query = make_query("a.example", 1);
    std::string large = query + std::string(3000, 'x');
    (void)!::send(fd.get(), large.data(), large.size(), 0);
    (void)!::send(fd.get(), query.data(), query.size(), 0);
    char buffer[2048];
    ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, 0);
    if (n < 0) return "none"s;
    auto answer = read_answer(std::string_view(buffer, static_cast<size_t>(n)), 1);
    return is_address(answer) ? "an address"s : answer;
  }),
            "an address")
      << "the first answer is to the good question";
  EXPECT_EQ(box.run([] {
    Fd fd = dial(boundary::kOwnAddress4, 53);
    std::string large = "\xff\xff"s + std::string(70000, 'x');
    (void)!::send(fd.get(), large.data(), large.size(), MSG_NOSIGNAL);
    return read_to_end(fd).substr(0, 10);
  }),
            "ECONNRESET");
}

TEST_F(GateTest, LargeStreamsArriveWholeInBothDirections) {
  Box box = world->box("default allow");
  auto sizes = box.run([] {
    auto address = resolve("a.example");
    Fd fd = dial(address, kSourcePort);
    size_t wanted = 50'000'000, got = 0;
    (void)!::send(fd.get(), &wanted, sizeof wanted, MSG_NOSIGNAL);
    static char buffer[1 << 20];
    for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) got += static_cast<size_t>(n);
    // Echo of more than all buffers on the way, read only when all is written or nothing more can be.
    Fd echo = dial(address, kEchoPort);
    std::string sent;
    for (int i = 0; i < 300'000; ++i) sent += std::to_string(i) + " ";
    std::string back;
    std::thread writer([&] {
      for (size_t at = 0; at < sent.size();) {
        ssize_t n = ::send(echo.get(), sent.data() + at, sent.size() - at, MSG_NOSIGNAL);
        if (n <= 0) return;
        at += static_cast<size_t>(n);
      }
      ::shutdown(echo.get(), SHUT_WR);
    });
    back = read_to_end(echo);
    writer.join();
    return std::to_string(got) + " " + (back == sent ? "same" : "different");
  });
  EXPECT_EQ(sizes, "50000000 same");
}

TEST_F(GateTest, BandwidthIsBounded) {
  Box box = world->box("default allow\nlimit bytes-per-second 2M");
  auto begin = Clock::now();
  EXPECT_EQ(box.run([] {
    Fd fd = dial(resolve("a.example"), kSourcePort);
    size_t wanted = 4 << 20;
    (void)!::send(fd.get(), &wanted, sizeof wanted, MSG_NOSIGNAL);
    return std::to_string(read_to_end(fd).size());
  }),
            std::to_string(4 << 20));
  // 4 MiB less the burst of half a MiB at 2 MiB a second: slower is possible on a busy machine, faster is not.
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(1500));
}

// A server may ask for another hello, and then it is that one which counts.
TEST_F(GateTest, ASecondHelloMustSayTheNameToo) {
  Box box = world->box("allow a.example");
  auto first = tls_hello("a.example");
  // Sends the first one, reads what the server says, sends the second one (or both at once), and reads to the end.
  auto twice = [&](const std::string& second, bool waits) {
    return box.run([&] {
      Fd fd = dial(resolve("a.example"), kRetryPort);
      std::string asked(retry_request().size(), 0), out = waits ? first : first + second;
      (void)!::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
      if (waits) {
        if (::recv(fd.get(), asked.data(), asked.size(), MSG_WAITALL) != static_cast<ssize_t>(asked.size()) ||
            asked != retry_request())
          return "no request for another"s;
        (void)!::send(fd.get(), second.data(), second.size(), MSG_NOSIGNAL);
      }
      ::shutdown(fd.get(), SHUT_WR);
      return read_to_end(fd);
    });
  };
  EXPECT_EQ(twice(first + "anything", true), first + "anything") << "and nothing is looked at behind it";
  EXPECT_EQ(twice(tls_hello("b.example"), true), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs a.example:8443");
  EXPECT_EQ(twice(tls_hello("c.example"), false), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs a.example:8443");
  EXPECT_EQ(twice(tls_hello("a.example", "\xfe\x0d\0\1x"s), true), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "ech a.example:8443");
  EXPECT_EQ(twice("GET / HTTP/1.1", true), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "bad-hello a.example:8443");
  // By a literal address the second one counts as much as the first.
  Box open = world->box("deny b.example\ndefault allow");
  EXPECT_EQ(open.run([&] {
    Fd fd = dial("203.0.113.10", kRetryPort);
    std::string out = first + tls_hello("b.example");
    (void)!::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL);
    return read_to_end(fd);
  }),
            "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "sni-differs 203.0.113.10:8443");
}

// What is let through by a literal address must not ask for a name that is denied.
TEST_F(GateTest, ADeniedNameIsNotAskedForAtALiteralAddress) {
  Box box = world->box("deny b.example\ndefault allow");
  auto good = tls_hello("a.example"), bad = tls_hello("b.example");
  EXPECT_EQ(box.run([&] { return talk_to("203.0.113.10", kTlsPort, good); }), good);
  EXPECT_EQ(box.run([&] { return talk_to("203.0.113.10", kTlsPort, bad, 1); }), "ECONNRESET");
  EXPECT_EQ(world->next_denial(), "policy b.example at 203.0.113.10:443");
}

// A whole network that leads back to this machine, without being anybody's address.
TEST_F(GateTest, NetworksOfTheHostsOwn) {
  auto here = [&](const char* six) {
    EXPECT_EQ(world->run_plainly([&] {
      return std::system(
                 ("ip -6 route add local "s + six + " dev lo && ip route add local 198.51.100.128/25 dev lo").c_str())
                 ? "failed"s
                 : "done"s;
    }),
              "done");
  };
  here("2001:db8:77::/48");
  world->outside->set("any6.example", {"2001:db8:77::5"});
  world->outside->set("any4.example", {"198.51.100.200"});
  Box box = world->box("default allow");
  for (const char* name : {"any6.example", "any4.example"}) {
    EXPECT_EQ(box.run([&] { return talk(name, kEchoPort, "x"); }), "ECONNRESET");
    EXPECT_EQ(world->next_denial(), "own-address "s + name + ":7");
  }
  EXPECT_EQ(box.run([] { return talk("six.example", kEchoPort, "x"); }), "x");
}

// ---- what is recorded -----------------------------------------------------------------------------------------------

TEST_F(GateTest, BytesAreToldWhileAConnectionLives) {
  constexpr size_t kMany = 40 << 20;
  Box box = world->box("default allow");
  auto pour = [](size_t wanted) {
    Fd fd = dial(resolve("a.example"), kSourcePort);
    (void)!::send(fd.get(), &wanted, sizeof wanted, MSG_NOSIGNAL);
    return std::to_string(read_to_end(fd).size());
  };
  EXPECT_EQ(box.run([&] { return pour(kMany); }), std::to_string(kMany));
  auto events = world->events_until([](const Event& event) { return event.kind == Event::Kind::closed; });
  size_t told = 0, up = 0, down = 0;
  for (const auto& event : events) told += event.kind == Event::Kind::moved, up += event.up, down += event.down;
  EXPECT_EQ(told, 2U) << "one for each 16 MiB";
  EXPECT_EQ(up, sizeof(size_t));
  EXPECT_EQ(down, kMany) << "each byte once";
  EXPECT_NE(world->report(box).find("\"bytes_down\":" + std::to_string(kMany)), std::string::npos);

  // And after some time, of one that is silent since: a gate that is killed then has told it.
  world->stop_gate();
  world->start_gate(std::chrono::milliseconds(1));
  EXPECT_EQ(world->add(box, "default allow"), "");
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  std::thread inside([&] {
    box.run([&] {
      ::close(hold[1]);
      Fd fd = dial(resolve("a.example"), kEchoPort);
      char c = 'x';
      (void)!::send(fd.get(), &c, 1, MSG_NOSIGNAL);
      (void)!::recv(fd.get(), &c, 1, 0);
      return ::read(hold[0], &c, 1) == 0 ? "held"s : "?"s;
    });
  });
  auto moved = world->next(Event::Kind::moved);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->name, "a.example");
  EXPECT_EQ(moved->up, 1U);
  EXPECT_EQ(moved->down, 1U);
  ::close(hold[1]), ::close(hold[0]);
  inside.join();
}

TEST_F(GateTest, EventsThatAreNotReadAreCountedAndNobodyElsesAreLost) {
  constexpr int kConnections = 900;
  Box loud = world->box("allow a.example\nlimit connections-per-second 100000"), quiet = world->box("allow b.example");
  EXPECT_EQ(loud.run([] {
    auto address = resolve("a.example");
    int good = 0;
    for (int i = 0; i < kConnections; ++i) good += talk_to(address, kEchoPort, "hello") == "hello";
    return std::to_string(good);
  }),
            std::to_string(kConnections));
  EXPECT_EQ(quiet.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  // Nobody has read a word until here. What there was room for comes now, and then how much there was not.
  uint64_t told = 0, lost = 0, up = 0, down = 0, others = 0;
  world->events_until([&](const Event& event) {
    if (event.sandbox == quiet.id) return ++others, false;
    event.kind == Event::Kind::lost ? lost += event.count : ++told;
    up += event.up, down += event.down;
    return event.kind == Event::Kind::lost && told + lost == 2 * kConnections;
  });
  EXPECT_GT(lost, 0U);
  EXPECT_EQ(told + lost, 2U * kConnections);
  EXPECT_EQ(up, 5U * kConnections) << "bytes of events that were lost are not";
  EXPECT_EQ(down, 5U * kConnections);
  EXPECT_EQ(others, 2U);
}

TEST_F(GateTest, LearningPrintsTheSmallestPolicy) {
  Box box = world->box("learn");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk_to("203.0.113.11", kEchoPort, "x"); }), "x");
  EXPECT_EQ(box.run([] { return talk_to("169.254.169.254", kEchoPort, "x"); }), "ECONNRESET");
  auto report = world->report(box);
  EXPECT_NE(report.find("allow 203.0.113.11/32:7\\nallow a.example:7\\ndefault deny"), std::string::npos) << report;
  EXPECT_NE(report.find("\"reason\":\"place\""), std::string::npos) << report;
  // A name that was marked stays marked: without that the policy would not suffice.
  world->outside->set("inside.example", {"10.5.0.1"});
  Box marked = world->box("allow inside.example local\nlearn");
  EXPECT_EQ(marked.run([] { return talk("inside.example", kEchoPort, "x"); }), "x");
  EXPECT_NE(world->report(marked).find("allow inside.example:7 local\\ndefault deny"), std::string::npos);
}

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

TEST_F(GateTest, ARemovedSandboxIsCutOff) {
  Box box = world->box("allow a.example");
  EXPECT_EQ(box.run([] { return talk("a.example", kEchoPort, "x"); }), "x");
  EXPECT_EQ(world->remove(box), "");
  EXPECT_NE(world->report(box), "");
  EXPECT_EQ(world->call(ControlOp::report, "nonsense"), "unreadable request");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryCounts = false;  // a sanitizer keeps what was freed
#else
constexpr bool kMemoryCounts = true;
#endif

// Kilobytes that the gate has in memory.
long memory_of(pid_t pid) {
  auto status = read_file("/proc/" + std::to_string(pid) + "/status").value();
  return std::atol(status.c_str() + status.find("VmRSS:") + 6);
}

// A sandbox whose process inside holds `count` connections, each begun with `first`, until it is let go.
class Crowd {
 public:
  Crowd(const Box& box, std::string address, uint16_t port, int count, std::string first, bool answered) {
    if (::pipe(ready_) < 0 || ::pipe(hold_) < 0) std::abort();
    thread_ = std::thread([=, this, &box] {
      box.run([&] {
        std::vector<Fd> held;
        char c = 0;
        int begun = 0;
        if (::write(ready_[1], &begun, sizeof begun) != sizeof begun) return ""s;
        for (int i = 0; i < count; ++i) {
          held.push_back(dial(address, port));
          if (held.back()) (void)!::send(held.back().get(), first.data(), first.size(), MSG_NOSIGNAL);
        }
        int good = 0;
        for (auto& fd : held) good += fd && (!answered || ::recv(fd.get(), &c, 1, 0) == 1);
        if (::write(ready_[1], &good, sizeof good) != sizeof good) return ""s;
        (void)!::read(hold_[0], &c, 1);
        return ""s;
      });
    });
    (void)wait();  // until it is a process of its own: nothing that is opened from here on is also open there
  }
  ~Crowd() {
    let_go();
    thread_.join();
    ::close(hold_[1]), ::close(hold_[0]), ::close(ready_[0]), ::close(ready_[1]);
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;
  // Of several, each before the first one goes: a process that was forked later has the ends of earlier ones' pipes.
  void let_go() { (void)!::write(hold_[1], "x", 1); }
  int wait() const {
    int good = -1;
    (void)!::read(ready_[0], &good, sizeof good);
    return good;
  }

 private:
  int ready_[2], hold_[2];
  std::thread thread_;
};

TEST_F(GateTest, ThousandsOfConnectionsAtOnce) {
  // Two descriptors each in the gate, one each out there and in here.
  rlimit files{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &files), 0);
  if (files.rlim_max < 16384) GTEST_SKIP() << "needs 16384 descriptors";
  files.rlim_cur = files.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &files), 0);
  constexpr int kBoxes = 5, kEach = 800;
  std::vector<Box> boxes;
  std::list<Crowd> crowds;
  std::vector<std::string> addresses;
  for (int i = 0; i < kBoxes; ++i) {
    boxes.push_back(world->box("default allow\nlimit connections-per-second 100000"));
    addresses.push_back(boxes.back().run([] { return resolve("a.example"); }));
  }
  long before = memory_of(world->gate());
  for (int i = 0; i < kBoxes; ++i)
    crowds.emplace_back(boxes[static_cast<size_t>(i)], addresses[static_cast<size_t>(i)], kEchoPort, kEach, "x", true);
  for (const auto& crowd : crowds) EXPECT_EQ(crowd.wait(), kEach);
  while (world->pending_events()) world->drop_event();
  long after = memory_of(world->gate());
  std::printf("%d connections at once: the gate has %ld KiB, %ld KiB before: %ld bytes each\n", kBoxes * kEach, after,
              before, (after - before) * 1024 / (kBoxes * kEach));
  EXPECT_EQ(boxes[0].run([&] { return talk_to(addresses[0], kEchoPort, "one more"); }), "one more");
  if (kMemoryCounts) {
    EXPECT_LT(after, before + kBoxes * kEach * 8) << "8 KiB each, at most";
  }
  for (auto& crowd : crowds) crowd.let_go();
}

// Thousands of hellos that never end: each up to 64 KiB, if nobody counted them together.
TEST_F(GateTest, HalfHellosHurtNobodyElse) {
  constexpr int kBoxes = 3, kEach = 900;
  Box neighbour = world->box("allow b.example");
  auto address = neighbour.run([] { return resolve("b.example"); });
  auto hello = tls_hello("b.example");
  EXPECT_EQ(neighbour.run([&] { return talk_to(address, kTlsPort, hello); }), hello);
  auto half = tls_hello("a.example", "\x00\x29\xc3\x50"s + std::string(50000, 'p')).substr(0, 48'000);
  long before = memory_of(world->gate());
  std::vector<Box> boxes;
  std::list<Crowd> crowds;
  for (int i = 0; i < kBoxes; ++i) boxes.push_back(world->box("allow a.example\nlimit connections-per-second 100000"));
  for (const auto& box : boxes)
    crowds.emplace_back(box, box.run([] { return resolve("a.example"); }), kTlsPort, kEach, half, false);
  for (const auto& crowd : crowds) EXPECT_GT(crowd.wait(), 0);
  EXPECT_EQ(world->next_denial(), "too-many-connections a.example:443");
  EXPECT_EQ(neighbour.run([&] { return talk_to(address, kTlsPort, hello, 100); }), hello);
  EXPECT_EQ(neighbour.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  long after = memory_of(world->gate());
  std::printf("%d half hellos of %zu bytes: the gate has %ld KiB, %ld KiB before\n", kBoxes * kEach, half.size(), after,
              before);
  if (kMemoryCounts) {
    // 4 MiB for each, and what the allocator and 2700 connections need besides.
    EXPECT_LT(after, before + kBoxes * 4096 + 24 * 1024);
  }
  for (auto& crowd : crowds) crowd.let_go();
}

// Connections whose data nobody reads: each would hold a pipe of 64 KiB.
TEST_F(GateTest, StuckConnectionsHoldFewPipes) {
  constexpr int kEach = 400;
  Box box = world->box("default allow\nlimit connections-per-second 100000"), neighbour = world->box("default allow");
  size_t wanted = 20 << 20;
  std::string first(reinterpret_cast<const char*>(&wanted), sizeof wanted);
  auto address = box.run([] { return resolve("a.example"); });
  auto pipes = [&] {
    size_t out = 0;
    std::error_code none;
    for (const auto& entry :
         std::filesystem::directory_iterator("/proc/" + std::to_string(world->gate()) + "/fd", none))
      out += std::filesystem::read_symlink(entry.path(), none).string().starts_with("pipe:");
    return out;
  };
  {
    Crowd crowd(box, address, kSourcePort, kEach, first, true);
    EXPECT_EQ(crowd.wait(), kEach) << "each got its first byte";
    // Where there is no pipe for it any more, a stream goes on without one, also in the same sandbox.
    auto pour = [&] {
      Fd fd = dial(resolve("a.example"), kSourcePort);
      (void)!::send(fd.get(), first.data(), first.size(), MSG_NOSIGNAL);
      return std::to_string(read_to_end(fd).size());
    };
    EXPECT_EQ(box.run(pour), std::to_string(wanted));
    EXPECT_EQ(neighbour.run(pour), std::to_string(wanted));
    size_t held = pipes();
    std::printf("%d stuck connections: %zu ends of pipes in the gate\n", kEach, held);
    EXPECT_GE(held, 2 * 256U);
    EXPECT_LE(held, 2 * (256U + 16 + PipePool::kIdle));
  }
}

TEST_F(GateTest, ManyConnectionsLeaveNothingBehind) {
  // Each sandbox may begin about a thousand connections at once; then the rules inside make it wait.
  const int kPerBox = 800;
  const int boxes = std::getenv("ISOLA_TEST_FULL") ? 126 : 3;
  if (boxes < 126) std::printf("reduced: %d connections instead of 100000 (ISOLA_TEST_FULL=1)\n", boxes * kPerBox);
  auto work = [] {
    auto address = resolve("a.example");
    int good = 0;
    for (int i = 0; i < kPerBox; ++i) good += talk_to(address, kEchoPort, "hello") == "hello";
    return std::to_string(good);
  };
  auto one = [&] {
    Box box = world->box("allow a.example\nlimit connections-per-second 100000");
    EXPECT_EQ(box.run(work), std::to_string(kPerBox));
    world->remove(box);
    while (world->pending_events()) world->drop_event();
  };
  one();
  long before = memory_of(world->gate());
  auto begin = Clock::now();
  for (int i = 1; i < boxes; ++i) one();
  long after = memory_of(world->gate());
  double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("%d connections in %.1f s (%.0f a second, with making %d sandboxes); the gate: %ld KiB, then %ld KiB\n",
              (boxes - 1) * kPerBox, seconds, (boxes - 1) * kPerBox / seconds, boxes - 1, before, after);
  if (kMemoryCounts) {
    EXPECT_LT(after, before + 1024) << "was " << before << " KiB";
  }
}

TEST_F(GateTest, AnIdleSandboxCostsLittle) {
  const int kBoxes = 100;
  std::vector<Box> boxes;
  boxes.push_back(world->box("allow a.example"));
  long before = memory_of(world->gate());
  for (int i = 0; i < kBoxes; ++i) boxes.push_back(world->box("allow a.example"));
  long each = (memory_of(world->gate()) - before) * 1024 / kBoxes;
  std::printf("%ld bytes each\n", each);
  if (kMemoryCounts) {
    EXPECT_LT(each, 50 << 10);
  }
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
