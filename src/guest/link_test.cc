#include "guest/link.h"

#include <gtest/gtest.h>

#include "guest/session.h"

namespace isola::guest {
namespace {

TEST(FrameParser, TakesFramesHoweverTheyAreTorn) {
  std::string wire;
  put_frame(wire, 1, Type::data, "ab", "c");
  put_frame(wire, 2, Type::eof, {});
  put_frame(wire, 3, Type::data, std::string(kMaxPayload, 'x'));
  for (size_t cut : {size_t{1}, size_t{7}, size_t{9}, size_t{13}, size_t{4096}, wire.size()}) {
    FrameParser parser;
    std::vector<std::string> seen;
    for (size_t at = 0; at < wire.size(); at += cut) {
      std::string_view part = std::string_view(wire).substr(at, cut);
      Frame f;
      while (*parser.next(part, f)) seen.push_back(std::to_string(f.channel) + ":" + std::to_string(f.payload.size()));
      EXPECT_LE(parser.held(), kHeader + kMaxPayload);
    }
    EXPECT_EQ(seen, (std::vector<std::string>{"1:3", "2:0", "3:65536"})) << cut;
  }
}

TEST(FrameParser, ABadHeaderIsForEver) {
  for (std::string_view bad : {std::string_view("\1\0\1\0\1\0\0\0\5", 9), std::string_view("\0\0\0\0\1\0\0\0\0", 9),
                               std::string_view("\0\0\0\0\1\0\0\0\12", 9), std::string_view("\0\0\0\0\0\0\0\0\5", 9)}) {
    FrameParser parser;
    Frame f;
    EXPECT_FALSE(parser.next(bad, f));
    std::string good;
    put_frame(good, 1, Type::eof, {});
    std::string_view rest = good;
    EXPECT_FALSE(parser.next(rest, f));
    parser.reset();
    EXPECT_TRUE(*parser.next(rest, f));
  }
}

TEST(End, ErrorsCrossTheLinkCleaned) {
  auto e = decode_end(encode_error({Code::denied, "no\x1b[2J\n", EPERM}));
  EXPECT_EQ(e.error().code, Code::denied);
  EXPECT_EQ(e.error().message, "no?[2J?");
  EXPECT_EQ(e.error().sys_errno, EPERM);
  EXPECT_EQ(*decode_end("\1result"), "result");
  EXPECT_EQ(decode_end("").error().code, Code::corrupt);
  EXPECT_EQ(decode_end(std::string_view("\0\xff\0\0\0\0\0\0\0\0", 10)).error().code, Code::corrupt);
}

class HostSession : public testing::Test {
 protected:
  Session s;
  void frame(uint32_t channel, Type type, std::string_view payload, bool good) {
    std::string wire;
    put_frame(wire, channel, type, payload);
    EXPECT_EQ(s.feed(wire).has_value(), good);
  }
  void hello() { frame(0, Type::hello, encode(Hello{.id = "i", .generation = 1}), true); }
};

TEST_F(HostSession, RefusesWhatBreaksTheRules) {
  frame(1, Type::data, "x", false);  // no hello
  s.reset({});
  hello();
  frame(0, Type::hello, encode(Hello{}), false);
  s.reset({});
  hello();
  frame(1, Type::end, "\1", false);  // nobody opened it
  s.reset({});
  hello();
  uint32_t c = s.open(Op::read, "", {}, kMaxPayload, true);
  frame(c, Type::data, std::string(kMaxPayload, 'x'), true);
  frame(c, Type::data, "x", false);  // not granted
  frame(c, Type::end, "\1", false);  // and nothing after it
}

// Cancelled ones count as well: nobody waits for them, but their end is still to come.
TEST_F(HostSession, AGuestThatEndsNothingFillsNoTable) {
  hello();
  uint32_t first = s.open(Op::ping, "", {});
  while (s.channels() < Session::kMostOpen) s.cancel(s.open(Op::ping, "", {}));
  size_t out = s.out().size();
  int ended = 0;
  auto refused = [&](Result<std::string_view> end) {
    ASSERT_FALSE(end);
    EXPECT_EQ(end.error().code, Code::exhausted);
    ++ended;
  };
  uint32_t none = s.open(Op::read, "args", {.end = refused});
  EXPECT_EQ(none, 0u);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(s.channels(), Session::kMostOpen);
  s.cancel(none), s.send_eof(none), s.grant(none, 1);
  EXPECT_EQ(s.send(none, "nobody's"), 8u);
  EXPECT_EQ(s.out().size(), out) << "the guest was told of it";
  // With an end there is room again.
  frame(first, Type::end, "\1", true);
  EXPECT_NE(s.open(Op::ping, "", {}), 0u);
  s.reset({});
  EXPECT_EQ(ended, 1);
}

TEST_F(HostSession, CreditLimitsWhatIsSentAndResetEndsEverything) {
  hello();
  int writable = 0, ended = 0;
  uint32_t c = s.open(Op::write, "", {.writable = [&] { ++writable; }, .end = [&](auto) { ++ended; }});
  std::string big(kGuestWindow + 5, 'x');
  EXPECT_EQ(s.send(c, big), kGuestWindow);
  EXPECT_EQ(s.send(c, "y"), 0u);
  frame(c, Type::credit, std::string_view("\5\0\0\0", 4), true);
  EXPECT_EQ(writable, 1);
  EXPECT_EQ(s.send(c, "123456"), 5u);
  // More than that is nothing that it could take: it would lie here instead.
  Writer much;
  much.u32(kMostCredit + 1);
  frame(c, Type::credit, much.data(), false);
  s.reset({Code::unavailable, "gone", 0});
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(s.channels(), 0u);
}

TEST_F(HostSession, ACancelledChannelHearsOnlyItsEnd) {
  hello();
  int heard = 0, ended = 0;
  auto count = [&](auto...) { ++heard; };
  uint32_t c = s.open(Op::dial, "",
                      {.reply = count,
                       .data = count,
                       .eof = [&] { ++heard; },
                       .writable = [&] { ++heard; },
                       .end = [&](auto) { ++ended; }},
                      kMaxPayload, true);
  EXPECT_EQ(s.send(c, std::string(kGuestWindow + 1, 'x')), kGuestWindow);
  s.cancel(c);
  s.sent(s.out().size());
  s.cancel(c);
  s.grant(c, 100);
  s.send_eof(c);
  EXPECT_EQ(s.send(c, "to nobody"), 9u);
  EXPECT_EQ(s.sendable(c), 0u);
  EXPECT_TRUE(s.out().empty()) << "once cancelled, nothing more is said";
  frame(c, Type::reply, "", true);
  frame(c, Type::data, std::string(1000, 'x'), true);
  frame(c, Type::credit, std::string_view("\5\0\0\0", 4), true);
  frame(c, Type::eof, "", true);
  EXPECT_EQ(heard, 0);
  frame(c, Type::end, "\1", true);
  EXPECT_EQ(ended, 1);
  EXPECT_EQ(s.channels(), 0u);
}

TEST_F(HostSession, ACancelledChannelIsHeldToItsCreditAllTheSame) {
  hello();
  uint32_t c = s.open(Op::dial, "", {}, kMaxPayload, true);
  s.cancel(c);
  frame(c, Type::data, std::string(kMaxPayload, 'x'), true);
  frame(c, Type::data, "x", false);
}

TEST(Messages, DecodeWantsEveryByteAndNoMore) {
  auto bytes = encode(Start{.argv = {"a", "b"}, .pty = true});
  EXPECT_EQ(decode<Start>(bytes)->argv.size(), 2u);
  EXPECT_FALSE(decode<Start>(bytes + "x"));
  for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(decode<Start>(std::string_view(bytes).substr(0, n)));
  EXPECT_FALSE(decode<Processes>(std::string_view("\xff\xff\xff\xff", 4)));
}

}  // namespace
}  // namespace isola::guest
