// Frames of a guest on their way through the scanner: order, sequence numbers, and who waits for whom.
#include "sandbox/channel_screen.h"

#include <gtest/gtest.h>

#include <boost/asio/executor_work_guard.hpp>
#include <cstring>
#include <thread>

#include "gate/scan_channel.h"
#include "kernel/process.h"
#include "vault/binding_wire.h"

namespace isola::sandbox {
namespace {

namespace net = boost::asio;

constexpr const char* kValue = "correct-horse-batter!";

class ChannelScreenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto key = vault::KeyPair::make().value();
    vault::Binding binding;
    binding.id = "b1";
    binding.secret = "github";
    binding.names = {"a.example"};
    binding.sealed = vault::seal(key.open_key(), kValue).value();
    searches->set(*gate::Bindings::make(vault::encode_bindings({binding}), &key).value());
    auto connect = [this]() -> Task<Result<Fd>> {
      auto pair = kernel::socket_pair();
      auto find = [this](const std::string&) { return searches; };
      loop.emplace(gate::Loop::make().value());
      channel = gate::ScanChannel::make(*loop, std::move(pair->second), find, [this](gate::ScanChannel&) {
                  loop->stop();
                }).value();
      gate = std::thread([this] { (void)loop->run(); });
      co_return std::move(pair->first);
    };
    link = ScanLink::make(io, connect, std::chrono::minutes(1));
    screening = std::make_shared<Screening>(
        link, [this] { return whose; },
        [this](const gate::ScanFound& found, const Screening::Place& place) {
          reports.push_back(place.stream + " " + found.secret + " x" + std::to_string(found.count));
        });
    screening->turn_on();
  }
  void TearDown() override {
    screen.reset();
    link->stop();
    while (gate.joinable() && io.run_one_for(std::chrono::milliseconds(50))) {
    }
    if (gate.joinable()) gate.join();
  }
  void make(guest::Op op) {
    ChannelScreen::Out out;
    out.deliver = [this](std::string frame, uint32_t cost) { frames.push_back(frame), costs += cost; };
    out.failed = [this](const Error& why) { failed = why; };
    out.place = [] { return Screening::Place{.command = "c1"}; };
    screen = ChannelScreen::make(op, screening, io, std::move(out));
  }
  void until(const std::function<bool()>& so) {
    auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!so() && std::chrono::steady_clock::now() < end) io.run_one_for(std::chrono::milliseconds(100));
    ASSERT_TRUE(so());
  }
  void take(guest::Stream stream, std::string_view bytes) {
    std::string frame(guest::kPieceHeader, '\0');
    frame[0] = static_cast<char>(stream);
    std::memcpy(frame.data() + 1, &seq, sizeof seq);
    frame += bytes;
    seq += bytes.size();
    given += frame.size();
    screen->take(frame);
  }
  // As "stream:bytes|", pieces of one stream joined; their numbers must go on without a gap.
  std::string shown() const {
    std::string out;
    uint64_t next = 0;
    char last = 0;
    for (const auto& frame : frames) {
      uint64_t at = 0;
      std::memcpy(&at, frame.data() + 1, sizeof at);
      EXPECT_EQ(at, next);
      if (frame[0] != last) out += (out.empty() ? "" : "|") + std::to_string(frame[0]) + ":";
      last = frame[0];
      out += frame.substr(guest::kPieceHeader);
      next = at + frame.size() - guest::kPieceHeader;
    }
    return out + "|";
  }
  std::string text() const {
    std::string out;
    for (const auto& frame : frames) out += frame.substr(guest::kPieceHeader);
    return out;
  }

  net::io_context io;
  net::executor_work_guard<net::io_context::executor_type> work{io.get_executor()};
  std::shared_ptr<gate::Searches> searches = std::make_shared<gate::Searches>();
  std::optional<gate::Loop> loop;
  std::unique_ptr<gate::ScanChannel> channel;
  std::thread gate;
  Result<std::vector<std::string>> whose = std::vector<std::string>{"box"};
  std::shared_ptr<ScanLink> link;
  std::shared_ptr<Screening> screening;
  std::shared_ptr<ChannelScreen> screen;
  std::vector<std::string> frames, reports;
  size_t costs = 0, given = 0;
  uint64_t seq = 0;
  std::optional<Error> failed;
};

TEST_F(ChannelScreenTest, TwoStreamsAndOneOrder) {
  for (guest::Op op : {guest::Op::run, guest::Op::run_with_files, guest::Op::attach, guest::Op::run_held,
                       guest::Op::attach_held, guest::Op::run_whole}) {
    make(op);
    frames.clear(), reports.clear();
    seq = costs = given = 0;
    take(guest::Stream::out, "one correct-");
    take(guest::Stream::err, "two ");
    take(guest::Stream::out, "horse-batter! ");
    take(guest::Stream::err, "three");
    bool over = false;
    screen->finish([&] { over = true; });
    until([&] { return over; });
    EXPECT_EQ(shown(), "1:one ********|2:two |1:************* |2:three|");
    EXPECT_EQ(costs, given);
    EXPECT_EQ(reports, std::vector<std::string>{"stdout github x1"});
  }
}

// Where it cannot be told what to search for, nothing passes.
TEST_F(ChannelScreenTest, WhoseItIsMustBeKnown) {
  whose = isola::fail(Code::exhausted, "more than can be searched for");
  for (guest::Op op : {guest::Op::read, guest::Op::run}) {
    failed.reset();
    make(op);
    ASSERT_TRUE(screen) << "null would let it through unsearched";
    take(guest::Stream::out, "anything");
    ASSERT_TRUE(failed);
    EXPECT_EQ(failed->message, "more than can be searched for");
    EXPECT_TRUE(frames.empty());
  }
}

TEST_F(ChannelScreenTest, WhoHoldsOthersUpIsBlottedOut) {
  make(guest::Op::run);
  take(guest::Stream::out, "correct-");
  take(guest::Stream::err, "still here");
  until([&] { return text() == "********still here"; });
  take(guest::Stream::out, "horse-batter!");
  until([&] { return text() == "********still here*************"; });
  EXPECT_EQ(costs, given);
}

TEST_F(ChannelScreenTest, APromptAppears) {
  make(guest::Op::run);
  take(guest::Stream::pty, "c");
  until([&] { return text() == "c"; });
  take(guest::Stream::pty, "orrect-horse-batter!");
  until([&] { return text() == "c********************"; });
}

TEST_F(ChannelScreenTest, AFileWaitsForItsNextPiece) {
  make(guest::Op::read);
  auto all = [&] {
    std::string out;
    for (const auto& frame : frames) out += frame;
    return out;
  };
  screen->take("before correct-");
  until([&] { return all() == "before "; });
  io.run_for(std::chrono::milliseconds(100));  // longer than a terminal would be kept waiting
  EXPECT_EQ(all(), "before ");
  screen->take("horse-batter! behind");
  until([&] { return all().ends_with("behind"); });
  EXPECT_EQ(all(), "before ********************* behind");
}

TEST_F(ChannelScreenTest, GapsKeepTheirPlace) {
  make(guest::Op::run);
  take(guest::Stream::out, "correct-");
  take(guest::Stream::gap, std::string(8, '\1'));
  take(guest::Stream::out, "goes on");
  bool over = false;
  screen->finish([&] { over = true; });
  until([&] { return over; });
  EXPECT_EQ(text(), "correct-" + std::string(8, '\1') + "goes on");
}

TEST_F(ChannelScreenTest, WhatIsNoPieceIsNotPassed) {
  make(guest::Op::run);
  take(static_cast<guest::Stream>(9), "what is this");
  ASSERT_TRUE(failed.has_value());
  EXPECT_EQ(failed->code, Code::corrupt);
  EXPECT_TRUE(frames.empty());
}

TEST_F(ChannelScreenTest, RecordsStayWhole) {
  make(guest::Op::list);
  screen->take("name correct-");
  screen->take("horse-batter!");
  screen->take(std::string("name ") + kValue);
  until([&] { return frames.size() == 3; });
  EXPECT_EQ(frames[0], "name correct-");
  EXPECT_EQ(frames[1], "horse-batter!");
  EXPECT_EQ(frames[2], "name " + std::string(21, '*'));
}

TEST_F(ChannelScreenTest, CrowdsAreCounted) {
  make(guest::Op::read);
  for (int i = 0; i < 10; ++i) screen->take(std::string(kValue) + "\n");
  bool over = false;
  screen->finish([&] { over = true; });
  until([&] { return over; });
  screen.reset();
  uint32_t sum = 0;
  for (const auto& report : reports) sum += static_cast<uint32_t>(std::stoul(report.substr(report.find('x') + 1)));
  EXPECT_EQ(sum, 10u);
  EXPECT_LE(reports.size(), 2u);
  EXPECT_EQ(reports[0].substr(0, 11), "file github");
}

TEST_F(ChannelScreenTest, WhoLeavesHearsOfTheEnd) {
  make(guest::Op::read);
  screen->take("correct-");
  bool over = false;
  screen->finish([&] { over = true; });
  screen->drop();
  EXPECT_TRUE(over);
}

TEST_F(ChannelScreenTest, NobodysValuesAreNothingToSearchFor) {
  whose->clear();
  make(guest::Op::read);
  EXPECT_EQ(screen, nullptr);
}

}  // namespace
}  // namespace isola::sandbox
