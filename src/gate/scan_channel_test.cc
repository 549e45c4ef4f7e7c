// Streams of sandboxes, searched: what is decided when, whatever happens to the bindings meanwhile.
#include "gate/scan_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <random>
#include <thread>

#include "kernel/process.h"
#include "vault/binding_wire.h"

namespace isola::gate {
namespace {

constexpr const char* kValue = "correct-horse-batter!";
constexpr const char* kOther = "tr0ub4dor-and-three";

std::string text_of_chance(size_t size) {
  static std::mt19937 chance(7);
  std::string out(size, 'x');
  for (char& c : out) c = static_cast<char>('a' + chance() % 26);
  return out;
}

class Values {
 public:
  vault::Binding binding(const std::string& id, const std::string& value, bool blocks = false) {
    vault::Binding out;
    out.id = id;
    out.secret = "secret-" + id;
    out.names = {"a.example"};
    out.blocks = blocks;
    out.sealed = vault::seal(key_.open_key(), value).value();
    return out;
  }
  void set(Searches& searches, const std::vector<vault::Binding>& all) {
    searches.set(*Bindings::make(vault::encode_bindings(all), &key_).value());
  }

 private:
  vault::KeyPair key_ = vault::KeyPair::make().value();
};

class ScanJobTest : public ::testing::Test {
 protected:
  void SetUp() override { values.set(*searches, {values.binding("b1", kValue)}); }
  ScanReply feed(ScanJob& job, std::string_view bytes, uint8_t flags = 0) {
    ScanReply reply;
    ScanData data{.offset = sent, .flags = flags, .bytes = bytes};
    EXPECT_TRUE(job.feed(data, reply));
    sent += bytes.size();
    return reply;
  }
  Values values;
  std::shared_ptr<Searches> searches = std::make_shared<Searches>();
  uint64_t sent = 0;
};

TEST_F(ScanJobTest, FindsAcrossPiecesAndHoldsTheBeginning) {
  ScanJob job({searches}, 0, "");
  auto first = feed(job, "well: correct-ho");
  EXPECT_EQ(first.decided, 6u);
  EXPECT_EQ(first.seen, 16u);
  EXPECT_TRUE(first.blots.empty());
  auto second = feed(job, "rse-batter!!");
  EXPECT_EQ(second.decided, 28u);
  ASSERT_EQ(second.blots.size(), 1u);
  EXPECT_EQ(second.blots[0], (ScanRange{6, 21}));
  ASSERT_EQ(second.found.size(), 1u);
  EXPECT_EQ(second.found[0].binding, "b1");
  EXPECT_EQ(second.found[0].secret, "secret-b1");
  EXPECT_EQ(second.found[0].offset, 6u);
}

TEST_F(ScanJobTest, ABeginningThatIsNoneIsLetGo) {
  ScanJob job({searches}, 0, "");
  EXPECT_EQ(feed(job, "correct-ho").decided, 0u);
  auto idle = feed(job, "", ScanData::kIdle);
  EXPECT_EQ(idle.decided, scan::kIdleMost);
  EXPECT_EQ(idle.context, scan::kIdleMost);
  auto more = feed(job, "use");
  EXPECT_EQ(more.decided, 13u);
  EXPECT_TRUE(more.blots.empty());
  EXPECT_EQ(more.context, 0u);
}

TEST_F(ScanJobTest, TheEndDecidesEverything) {
  ScanJob job({searches}, 0, "");
  EXPECT_EQ(feed(job, "correct-ho", ScanData::kEnd).decided, 10u);
  // What follows is not its continuation.
  auto next = feed(job, "rse-batter!");
  EXPECT_TRUE(next.blots.empty());
}

TEST_F(ScanJobTest, WhoIsPressedBlotsOut) {
  ScanJob job({searches}, 0, "");
  feed(job, "correct-ho");
  auto pressed = feed(job, "", ScanData::kPress);
  EXPECT_EQ(pressed.decided, 10u);
  ASSERT_EQ(pressed.blots.size(), 1u);
  EXPECT_EQ(pressed.blots[0], (ScanRange{0, 10}));
  // And the rest of it is still found.
  auto rest = feed(job, "rse-batter!");
  ASSERT_EQ(rest.found.size(), 1u);
  ASSERT_EQ(rest.blots.size(), 1u);
  EXPECT_EQ(rest.blots[0], (ScanRange{0, 21}));
}

TEST_F(ScanJobTest, BeginsAgainBehindWhatWasLetGo) {
  ScanJob job({searches}, 103, "cor");
  sent = 103;
  auto reply = feed(job, "rect-horse-batter!.");
  ASSERT_EQ(reply.blots.size(), 1u);
  EXPECT_EQ(reply.blots[0], (ScanRange{100, 21}));
  EXPECT_EQ(reply.decided, 122u);
}

TEST_F(ScanJobTest, ABindingCountsForWhatIsOpen) {
  ScanJob job({searches}, 0, "");
  feed(job, std::string(kOther) + " ");
  feed(job, "correct-ho");
  values.set(*searches, {values.binding("b2", kOther)});  // and b1 is revoked
  // What the search before held back is not forgotten over it, and what was revoked is searched for as before.
  auto rest = feed(job, "rse-batter! " + std::string(kOther) + " " + kValue + " ");
  std::vector<std::string> found;
  for (const auto& one : rest.found) found.push_back(one.binding);
  EXPECT_EQ(rest.decided, sent);
  EXPECT_NE(std::ranges::find(found, "b2"), found.end());
  EXPECT_NE(std::ranges::find(found, "b1"), found.end());
  uint64_t covered = 0;
  for (const auto& blot : rest.blots) covered += blot.length;
  EXPECT_GE(covered, 21u + 19u + 21u);
}

// Several times the same large value is one, and leaves room for what was revoked.
TEST_F(ScanJobTest, AValueThatIsBoundOftenCountsOnce) {
  const std::string large = text_of_chance(4 << 10);
  std::vector<vault::Binding> all;
  for (int i = 0; i < 5; ++i) all.push_back(values.binding("l" + std::to_string(i), large));
  values.set(*searches, all);  // and b1 is revoked
  ScanJob job({searches}, 0, "");
  auto reply = feed(job, kValue, ScanData::kEnd);
  ASSERT_EQ(reply.found.size(), 1u);
  EXPECT_EQ(reply.found[0].binding, "b1");
}

// Tokens that were over long ago do not push out a key that was revoked.
TEST_F(ScanJobTest, TokensThatAreOverMakeRoom) {
  for (int i = 0; i < 40; ++i) {
    auto token = values.binding("t", text_of_chance(1 << 10));
    token.until = token.due = 1;
    values.set(*searches, {token});  // and b1 is revoked
  }
  ScanJob job({searches}, 0, "");
  auto reply = feed(job, kValue, ScanData::kEnd);
  ASSERT_EQ(reply.found.size(), 1u);
  EXPECT_EQ(reply.found[0].binding, "b1");
}

TEST_F(ScanJobTest, OfSeveralSandboxesAllValuesCount) {
  auto others = std::make_shared<Searches>();
  values.set(*others, {values.binding("b2", kOther)});
  ScanJob job({searches, others}, 0, "");
  auto reply = feed(job, std::string(kValue) + kOther + "tr0ub");
  EXPECT_EQ(reply.found.size(), 2u);
  EXPECT_EQ(reply.decided, 40u);
}

TEST_F(ScanJobTest, AValueThatBlocks) {
  values.set(*searches, {values.binding("b1", kValue), values.binding("b2", kOther, true)});
  ScanJob job({searches}, 0, "");
  feed(job, kValue);
  EXPECT_EQ(job.blocked(), nullptr);
  feed(job, kOther);
  ASSERT_NE(job.blocked(), nullptr);
  EXPECT_EQ(job.blocked()->binding, "b2");
}

TEST_F(ScanJobTest, WhatIsNotTheContinuationIsRefused) {
  ScanJob job({searches}, 0, "");
  ScanReply reply;
  EXPECT_FALSE(job.feed({.offset = 1, .bytes = "x"}, reply));
}

TEST_F(ScanJobTest, CrowdsOfHitsStayBounded) {
  ScanJob job({searches}, 0, "");
  std::string all;
  while (all.size() + 22 < kMaxScanData) all += std::string(kValue) + " ";
  auto reply = feed(job, all);
  EXPECT_EQ(reply.found.size(), 1u);
  EXPECT_EQ(reply.found[0].count, all.size() / 22);
  Writer out;
  encode(out, reply);
  EXPECT_LT(out.data().size(), kMaxScanMessage);
}

// ---- the channel ----------------------------------------------------------------------------------------------------

class ScanChannelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    values.set(*searches, {values.binding("b1", kValue)});
    auto pair = kernel::socket_pair().value();
    ours = std::move(pair.first);
    loop.emplace(Loop::make().value());
    auto find = [this](const std::string& id) -> std::shared_ptr<const Searches> {
      return id == "known" ? searches : id == "half" ? half : nullptr;
    };
    channel = ScanChannel::make(*loop, std::move(pair.second), find, [this](ScanChannel&) { loop->stop(); }).value();
    half->set_missing("the key is away");
  }
  void start() {
    thread = std::thread([this] { (void)loop->run(); });
  }
  void TearDown() override {
    ours.reset();
    if (thread.joinable()) thread.join();
  }
  void say(const std::string& message) { ASSERT_TRUE(kernel::send_message(ours.get(), message)); }
  void say_data(uint64_t stream, uint64_t offset, std::string_view bytes, uint8_t flags = 0) {
    say(encode_data_head({.stream = stream, .offset = offset, .flags = flags}) + std::string(bytes));
  }
  std::vector<ScanReply> hear() {
    auto message = kernel::receive_message(ours.get(), kMaxScanMessage);
    std::vector<ScanReply> out;
    if (!message) return out;
    Reader in(message->bytes);
    while (in.ok() && !in.done()) decode(in, out.emplace_back());
    return out;
  }

  Values values;
  std::shared_ptr<Searches> searches = std::make_shared<Searches>(), half = std::make_shared<Searches>();
  std::optional<Loop> loop;
  std::unique_ptr<ScanChannel> channel;
  Fd ours;
  std::thread thread;
};

TEST_F(ScanChannelTest, AnswersForEachStream) {
  start();
  say(encode_open({.stream = 1, .sandboxes = {"known"}}));
  say(encode_open({.stream = 2, .sandboxes = {"known"}}));
  say_data(1, 0, "correct-horse");
  auto first = hear();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].decided, 0u);
  say_data(2, 0, "-batter!");
  auto second = hear();
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].stream, 2u);
  EXPECT_EQ(second[0].decided, 8u);
  say_data(1, 13, "-batter!");
  auto third = hear();
  ASSERT_EQ(third.size(), 1u);
  EXPECT_EQ(third[0].decided, 21u);
  EXPECT_EQ(third[0].blots.size(), 1u);
}

TEST_F(ScanChannelTest, PiecesThatWereLaidAreSearchedAndTheirSlotsGivenBack) {
  start();
  auto ring = ScanRing::make();
  ASSERT_TRUE(ring);
  ASSERT_TRUE(kernel::send_message(ours.get(), encode_ring(), std::array{ring->fd().get()}));
  say(encode_open({.stream = 1, .sandboxes = {"known"}}));
  uint64_t sent = 0, taken = 0;
  for (size_t i = 0; i < 2 * kScanSlots; ++i) {
    std::string piece = text_of_chance(10'000) + kValue;
    char* slot = ring->free_slot();
    ASSERT_NE(slot, nullptr);
    piece.copy(slot, piece.size());
    ring->laid();
    say(encode_laid({.stream = 1, .offset = sent}, piece.size()));
    sent += piece.size();
    bool decided = false;
    while (!decided || taken != i + 1) {
      auto all = hear();
      ASSERT_FALSE(all.empty());
      for (const auto& one : all) {
        if (one.what == ScanAnswer::taken) {
          taken = one.seen;
          ASSERT_TRUE(ring->taken(taken));
          continue;
        }
        decided = true;
        EXPECT_EQ(one.decided, sent);
        ASSERT_EQ(one.blots.size(), 1u);
        EXPECT_EQ(one.blots[0].offset, sent - std::string(kValue).size());
      }
    }
  }
}

TEST_F(ScanChannelTest, ARingThatIsNoneEndsTheChannel) {
  const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  auto ring = ScanRing::make();
  ASSERT_TRUE(ring);
  const ScanData piece{.stream = 1};
  using Words = std::function<void()>;
  auto bring = [&](const Fd& fd) {
    ASSERT_TRUE(kernel::send_message(ours.get(), encode_ring(), std::array{fd.get()}));
  };
  for (const Words& words : {Words([&] { say(encode_laid(piece, 10)); }),                         // there is none
                             Words([&] { say(encode_ring()); }),                                  // no descriptor
                             Words([&] { bring(null); }),                                         // no such memory
                             Words([&] { bring(ring->fd()), say(encode_laid(piece, 70'000)); }),  // longer than a slot
                             Words([&] { say(encode_cut(9)), bring(ring->fd()); })}) {            // not before all else
    SetUp();
    start();
    words();
    EXPECT_TRUE(hear().empty());
    TearDown();
  }
  SetUp();  // for the end
}

TEST_F(ScanChannelTest, NothingIsSaidOfWhatCannotBeSearched) {
  start();
  for (const char* sandbox : {"unknown", "half"}) {
    const uint64_t stream = sandbox[0];
    say(encode_open({.stream = stream, .sandboxes = {sandbox}}));
    auto answer = hear();
    ASSERT_EQ(answer.size(), 1u);
    EXPECT_EQ(answer[0].what, ScanAnswer::unready);
    EXPECT_EQ(answer[0].stream, stream);
    EXPECT_FALSE(answer[0].why.empty());
    say_data(stream, 0, "never looked at");
  }
  // The next answer is of the next stream: there was none to those.
  say(encode_open({.stream = 1, .sandboxes = {"known"}}));
  say_data(1, 0, "x");
  EXPECT_EQ(hear().at(0).stream, 1u);
}

TEST_F(ScanChannelTest, NonsenseClosesIt) {
  start();
  say("\x09nonsense");
  EXPECT_TRUE(hear().empty());
  thread.join();
  EXPECT_EQ(channel->streams(), 0u);
}

TEST_F(ScanChannelTest, WhoDoesNotReadIsNotReadFrom) {
  start();
  say(encode_open({.stream = 1, .sandboxes = {"known"}}));
  // As long as it takes some: until both ways are full.
  std::string piece(60'000, 'x');
  for (size_t at = 0; at + 30 < piece.size(); at += 30) piece.replace(at, 21, kValue);
  uint64_t sent = 0;
  pollfd room{.fd = ours.get(), .events = POLLOUT, .revents = 0};
  while (::poll(&room, 1, 2000) == 1 && sent < 1u << 30) {
    std::string message = encode_data_head({.stream = 1, .offset = sent}) + piece;
    if (::send(ours.get(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
      if (::poll(&room, 1, 500) == 0) break;
      continue;
    }
    sent += piece.size();
  }
  EXPECT_LT(sent, 1u << 30);
  // And everything is answered when the answers are taken.
  uint64_t seen = 0;
  while (seen < sent)
    for (const auto& reply : hear()) seen = std::max(seen, reply.seen);
  EXPECT_EQ(seen, sent);
}

}  // namespace
}  // namespace isola::gate
