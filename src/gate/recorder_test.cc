#include "gate/recorder.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

class RecorderTest : public ::testing::Test {
 protected:
  std::vector<Event> told;
  Clock::time_point now = Clock::now();
  Recorder recorder{"isandbox", [this](const Event& event) { told.push_back(event); }};
  Event event(Event::Kind kind, std::string name, uint16_t port, std::string address = "") {
    return {.kind = kind, .name = std::move(name), .address = std::move(address), .port = port};
  }
};

TEST_F(RecorderTest, ARepeatedDenialIsToldOnceASecond) {
  for (int i = 0; i < 100; ++i) recorder.record(event(Event::Kind::denied, "a.example", 443), now);
  EXPECT_EQ(told.size(), 1U);
  recorder.record(event(Event::Kind::denied, "b.example", 443), now);
  EXPECT_EQ(told.size(), 2U);
  now += std::chrono::seconds(2);
  recorder.record(event(Event::Kind::denied, "a.example", 443), now);
  ASSERT_EQ(told.size(), 3U);
  EXPECT_EQ(told[2].count, 100U) << "99 that were not told, and this one";
  EXPECT_EQ(told[2].sandbox, "isandbox");
  EXPECT_EQ(recorder.denials().size(), 2U);
  EXPECT_EQ(recorder.denials()[0].count, 101U);
}

// Each is an entry in the ledger, and a program can make up as many names as it likes.
TEST_F(RecorderTest, AFloodOfNamesIsToldAsOne) {
  uint64_t count = 0, seconds = 100, each = 1000;
  for (uint64_t s = 0; s < seconds; ++s, now += std::chrono::seconds(1))
    for (uint64_t i = 0; i < each; ++i)
      recorder.record(event(Event::Kind::denied, std::to_string(s * each + i) + ".example", 53), now);
  EXPECT_LT(told.size(), 256 + seconds * 12);
  EXPECT_GT(told.size(), 256U) << "some of them by name";
  now += std::chrono::seconds(2);
  recorder.record(event(Event::Kind::denied, "last.example", 53), now);
  for (const auto& one : told) count += one.count;
  EXPECT_GE(count + each, seconds * each) << "the rest is counted, up to the last second";
}

// Each connection is two entries in the ledger: many to one place are one a second, and every byte is in them.
TEST_F(RecorderTest, AFloodOfConnectionsIsToldTogether) {
  uint64_t seconds = 20, each = 1000, connections = 0, closed = 0, up = 0, down = 0;
  for (uint64_t s = 0; s < seconds; ++s, now += std::chrono::seconds(1)) {
    for (uint64_t i = 0; i < each; ++i) {
      auto name = std::to_string(i % 50) + ".example";
      recorder.record(event(Event::Kind::allowed, name, 443, "192.0.2.1"), now);
      auto end = event(Event::Kind::closed, name, 443, "192.0.2.1");
      end.up = 3, end.down = 5;
      recorder.record(end, now);
    }
    recorder.flush(now);
  }
  EXPECT_LT(told.size(), 256 + seconds * (20 + 2 * 50));
  for (const auto& one : told) {
    (one.kind == Event::Kind::allowed ? connections : closed) += one.count;
    up += one.up, down += one.down;
  }
  EXPECT_EQ(connections, seconds * each);
  EXPECT_EQ(closed, seconds * each);
  EXPECT_EQ(up, 3 * seconds * each);
  EXPECT_EQ(down, 5 * seconds * each);
}

TEST_F(RecorderTest, TheLastRepetitionsAreToldToo) {
  for (int i = 0; i < 100; ++i) recorder.record(event(Event::Kind::denied, "a.example", 443), now);
  recorder.flush(now);
  EXPECT_EQ(told.size(), 1U) << "not yet";
  now += std::chrono::seconds(1);
  recorder.flush(now);
  recorder.flush(now);
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[1].count, 99U);
  recorder.record(event(Event::Kind::denied, "a.example", 443), now);
  recorder.flush(now, true);
  EXPECT_EQ(told.size(), 3U) << "the sandbox goes: now or never";
}

// However many places there are: bytes that went somewhere are not told as if they had gone nowhere, as long as the
// packet rules let no more begin in a second.
TEST_F(RecorderTest, ADecoyHidesNoDestination) {
  for (uint16_t i = 0; i < 256; ++i) recorder.record(event(Event::Kind::allowed, "decoy.example", i, "192.0.2.1"), now);
  for (uint16_t i = 0; i < 200; ++i) recorder.record(event(Event::Kind::allowed, "decoy.example", i, "192.0.2.1"), now);
  auto real = event(Event::Kind::closed, "real.example", 443, "192.0.2.2");
  real.up = 1'000'000;
  recorder.record(real, now);
  recorder.flush(now);
  EXPECT_TRUE(std::ranges::any_of(
      told, [](const Event& one) { return one.name == "real.example" && one.up == 1'000'000 && one.port == 443; }));
}

TEST_F(RecorderTest, MadeUpNamesDoNotHideWhereItHasBeen) {
  for (size_t i = 0; i < 3 * Recorder::kDestinations; ++i)
    recorder.record(event(Event::Kind::denied, std::to_string(i) + ".example", 53), now);
  for (size_t i = 0; i < Recorder::kDestinations / 2 - 1; ++i)
    recorder.record(event(Event::Kind::allowed, std::to_string(i) + ".example.org", 443, "192.0.2.1"), now);
  EXPECT_LE(recorder.counts().size(), Recorder::kDestinations + 1);
  EXPECT_EQ(recorder.counts().at("0.example.org:443").connections, 1U);
  EXPECT_EQ(recorder.counts().at(std::to_string(Recorder::kDestinations / 2 - 2) + ".example.org:443").connections, 1U);
}

TEST_F(RecorderTest, TheSmallestPolicyIsWhatWasUsed) {
  recorder.record(event(Event::Kind::allowed, "a.example", 443, "192.0.2.1"), now);
  recorder.record(event(Event::Kind::allowed, "a.example", 80, "192.0.2.1"), now);
  recorder.record(event(Event::Kind::allowed, "a.example", 443, "192.0.2.1"), now);
  recorder.record(event(Event::Kind::allowed, "", 22, "2001:db8::1"), now);
  recorder.record(event(Event::Kind::denied, "evil.example", 22), now);
  EXPECT_EQ(to_text(recorder.smallest_policy()), "allow [2001:db8::1/128]:22\nallow a.example:80,443\ndefault deny\n");
  EXPECT_EQ(parse_policy(to_text(recorder.smallest_policy())).value(), recorder.smallest_policy());
}

TEST_F(RecorderTest, InsidePlacesStayWhatTheyWere) {
  recorder.record(event(Event::Kind::allowed, "db.example", 5432, "10.1.2.3"), now);
  recorder.record(event(Event::Kind::allowed, "meta.example", 80, "169.254.169.254"), now);
  auto own = event(Event::Kind::allowed, "own.example", 22, "192.0.2.7");
  own.own_address = true;
  recorder.record(own, now);
  auto policy = recorder.smallest_policy();
  EXPECT_EQ(to_text(policy),
            "allow 169.254.169.254/32:80\nallow 192.0.2.7/32:22\nallow db.example:5432 local\nallow meta.example:80\n"
            "allow own.example:22\ndefault deny\n");
  Egress egress(policy);
  EXPECT_TRUE(egress.connect_address("db.example", Address::parse("10.1.2.3").value(), 5432).allowed());
  EXPECT_TRUE(egress.connect_address("meta.example", Address::parse("169.254.169.254").value(), 80).allowed());
  EXPECT_TRUE(egress.names_address(Address::parse("192.0.2.7").value(), 22));
}

TEST_F(RecorderTest, TooManyNamesAreSaidAndNotCutOff) {
  for (int i = 0; i < 1100; ++i)
    recorder.record(event(Event::Kind::allowed, std::string(55, 'y') + std::to_string(i) + ".example", 443), now);
  auto text = recorder.smallest_policy_text(20'000);
  EXPECT_LE(text.size(), 20'000U);
  auto read = parse_policy(text);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_GT(read->rules.size(), 100U);
  EXPECT_NE(text.find("\n# too many names: " + std::to_string(1100 - read->rules.size()) + " are not in this list\n"),
            std::string::npos)
      << text.substr(text.size() - 100);
  // All ports of one name are one range; more ranges than a rule can have are said, too.
  Recorder other("i2", [](const Event&) {});
  for (uint16_t port = 1000; port < 1500; ++port) other.record(event(Event::Kind::allowed, "a.example", port), now);
  EXPECT_EQ(other.smallest_policy_text(1000), "allow a.example:1000-1499\ndefault deny\n");
  for (uint16_t port = 2000; port < 2200; port += 2) other.record(event(Event::Kind::allowed, "a.example", port), now);
  EXPECT_TRUE(parse_policy(other.smallest_policy_text(1000)));
  EXPECT_NE(other.smallest_policy_text(1000).find("# too many names: 1 "), std::string::npos);
}

TEST_F(RecorderTest, WhatIsLostIsCountedWithItsBytes) {
  Lost lost;
  Event some = event(Event::Kind::closed, "a.example", 443);
  some.up = 3, some.down = 4;
  lost.add(some);
  lost.add(event(Event::Kind::denied, "b.example", 443));
  Event said = lost.take("i1");
  EXPECT_EQ(said.kind, Event::Kind::lost);
  EXPECT_EQ(said.count, 2U);
  EXPECT_EQ(said.up, 3U);
  EXPECT_EQ(lost.count, 0U);
  lost.add(said);
  EXPECT_EQ(lost.count, 2U) << "lost once more";
  EXPECT_EQ(lost.down, 4U);
}

TEST_F(RecorderTest, IsBounded) {
  for (int i = 0; i < 5000; ++i) {
    recorder.record(event(Event::Kind::denied, std::string(200, 'x') + std::to_string(i) + ".example", 443), now);
    recorder.record(event(Event::Kind::allowed, "y" + std::to_string(i) + ".example", 443), now);
  }
  EXPECT_EQ(recorder.denials().size(), Recorder::kDenials);
  EXPECT_LE(recorder.counts().size(), Recorder::kDestinations + 1);
  EXPECT_LT(recorder.report("").size(), 160'000U);
}

// A sandbox that asks for made-up names first does not make what it does with a credential anonymous by that.
TEST_F(RecorderTest, AFloodOfDenialsDoesNotHideWhoseSakeOneWasFor) {
  for (int i = 0; i < 1000; ++i)
    recorder.record(event(Event::Kind::denied, "x" + std::to_string(i) + ".example", 443), now);
  auto refused = event(Event::Kind::denied, "a.example", 443);
  refused.binding = "b1", refused.secret = "token";
  recorder.record(refused, now);
  const auto& last = recorder.denials().back();
  EXPECT_EQ(last.name, "(others)");
  EXPECT_EQ(last.binding + " " + last.secret, "b1 token");
}

TEST_F(RecorderTest, EventsTravel) {
  Event out = event(Event::Kind::closed, "a.example", 443, "192.0.2.1");
  out.sandbox = "i1", out.up = 7, out.down = 1ull << 40, out.rule = "allow *", out.host_verified = true, out.when = -1;
  out.reason = Reason::ech;
  Writer writer;
  encode(writer, out);
  Reader reader(writer.data());
  Event in;
  decode(reader, in);
  ASSERT_TRUE(reader.done());
  EXPECT_EQ(in.name, out.name);
  EXPECT_EQ(in.down, out.down);
  EXPECT_EQ(in.reason, Reason::ech);
  EXPECT_TRUE(in.host_verified);
}

}  // namespace
}  // namespace isola::gate
