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

TEST_F(RecorderTest, TheSmallestPolicyIsWhatWasUsed) {
  recorder.record(event(Event::Kind::allowed, "a.example", 443, "192.0.2.1"), now);
  recorder.record(event(Event::Kind::allowed, "a.example", 80, "192.0.2.1"), now);
  recorder.record(event(Event::Kind::allowed, "a.example", 443, "192.0.2.1"), now);
  recorder.record(event(Event::Kind::allowed, "", 22, "2001:db8::1"), now);
  recorder.record(event(Event::Kind::denied, "evil.example", 22), now);
  EXPECT_EQ(to_text(recorder.smallest_policy()), "allow [2001:db8::1/128]:22\nallow a.example:80,443\ndefault deny\n");
  EXPECT_EQ(parse_policy(to_text(recorder.smallest_policy())).value(), recorder.smallest_policy());
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
