// What the gate tells of what went through it.
#include "gate/gate_fixture.h"

namespace isola::gate::testing {
namespace {

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
  world->start_gate({.tell_after = std::chrono::milliseconds(1)});
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

// More to tell than there is room for: names that are denied, then connections of five bytes each way. How many of
// those got through.
std::string flood(const Box& box, int names, int connections) {
  return box.run([&] {
    auto address = resolve("a.example");
    int good = 0;
    for (int i = 0; i < names; ++i) good += resolve("n" + std::to_string(i) + ".example") != "code 3";
    for (int i = 0; i < connections; ++i) good += talk_to(address, kEchoPort, "hello") == "hello";
    return std::to_string(good);
  });
}

TEST_F(GateTest, EventsThatAreNotReadAreCountedAndNobodyElsesAreLost) {
  constexpr int kConnections = 900, kNames = 300;
  world->stop_gate();
  world->start_gate({.events_most = 128});
  Box loud = world->box("allow a.example\nlimit connections-per-second 100000"), quiet = world->box("allow b.example");
  EXPECT_EQ(flood(loud, kNames, kConnections), std::to_string(kConnections));
  EXPECT_EQ(quiet.run([] { return talk("b.example", kEchoPort, "x"); }), "x");
  // Nobody has read a word until here. What there was room for comes now, and then how much there was not.
  uint64_t told = 0, lost = 0, up = 0, down = 0, others = 0;
  world->events_until([&](const Event& event) {
    if (event.sandbox == quiet.id) return ++others, false;
    (event.kind == Event::Kind::lost ? lost : told) += event.count;
    up += event.up, down += event.down;
    return event.kind == Event::Kind::lost && up == 5 * kConnections && down == 5 * kConnections;
  });
  EXPECT_GT(lost, 0U);
  EXPECT_LE(told + lost, 2U * kConnections + kNames) << "an event that was lost may have been of more than one";
  EXPECT_EQ(up, 5U * kConnections) << "bytes of events that were lost are not";
  EXPECT_EQ(down, 5U * kConnections);
  EXPECT_EQ(others, 2U);
}

// Nothing is left to be told once a sandbox is gone: nobody would know whose it was.
TEST_F(GateTest, WhatWasLostIsToldBeforeItsSandboxIsGone) {
  constexpr int kConnections = 600, kNames = 300;
  world->stop_gate();
  world->start_gate({.events_most = 4});
  Box box = world->box("allow a.example\nlimit connections-per-second 100000");
  EXPECT_EQ(flood(box, kNames, kConnections), std::to_string(kConnections));
  // The answer comes behind everything that was told.
  EXPECT_EQ(world->remove(box), "");
  uint64_t up = 0, lost = 0;
  for (const auto& event : world->told()) up += event.up, lost += event.kind == Event::Kind::lost;
  EXPECT_EQ(up, 5U * kConnections);
  EXPECT_GT(lost, 0U);
}

// What a server says before its client is refused went in all the same.
TEST_F(GateTest, ADenialAfterTheServerSpokeHasItsBytesAndItsAddress) {
  Box box = world->box("allow b.example");
  EXPECT_EQ(box.run([] {
    Fd fd = dial(resolve("b.example"), kGreetPort);
    std::string greeting = read_to_end(fd);
    auto hello = tls_hello("a.example");
    (void)!::send(fd.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    return greeting;
  }),
            "hello from 203.0.113.11\n");
  auto events = world->events_until([](const Event& event) { return event.kind == Event::Kind::denied; });
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].kind, Event::Kind::moved);
  EXPECT_EQ(events[0].down, "hello from 203.0.113.11\n"s.size());
  EXPECT_EQ(events[0].up, 0U);
  EXPECT_EQ(events[1].reason, Reason::sni_differs);
  EXPECT_EQ(events[1].address, "203.0.113.11");
}

// Whatever it prints must be true: TLS that a policy of names refuses is let through while it learns, and named.
TEST_F(GateTest, LearningSaysWhatNoPolicyOfNamesWouldLetThrough) {
  Box box = world->box("learn");
  auto good = tls_hello("a.example"), silent = tls_hello(""), other = tls_hello("c.example"), cut = good.substr(0, 30);
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, good); }), good);
  EXPECT_TRUE(world->next(Event::Kind::allowed).value().host_verified);
  EXPECT_EQ(world->report(box).find("refuses"), std::string::npos) << world->report(box);
  EXPECT_EQ(box.run([&] { return talk("b.example", kTlsPort, silent); }), silent);
  EXPECT_EQ(box.run([&] { return talk("six.example", kTlsPort, other); }), other);
  EXPECT_EQ(box.run([&] { return talk("a.example", kTlsPort, cut); }), cut);
  auto report = world->report(box);
  for (const char* line : {"# b.example was asked for by TLS in a way that this refuses: sni-missing",
                           "# six.example was asked for by TLS in a way that this refuses: sni-differs",
                           "# a.example was asked for by TLS in a way that this refuses: bad-hello"})
    EXPECT_NE(report.find(line), std::string::npos) << line << "\n" << report;
  EXPECT_NE(report.find("\"since\":"), std::string::npos);
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

}  // namespace
}  // namespace isola::gate::testing
