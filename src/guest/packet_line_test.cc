#include "guest/packet_line.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <random>

#include "base/fd.h"

namespace isola::guest {
namespace {

// Two lines with somebody between them who sees every packet, and may lose it.
class Lines : public ::testing::Test {
 protected:
  void SetUp() override {
    for (auto* pair : {left_, right_}) {
      int fds[2];
      ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      const int room = 4 << 20;
      for (int i : {0, 1}) {
        ::setsockopt(fds[i], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
        pair[i] = Fd(fds[i]);
      }
    }
    a_.emplace(left_[0].get(), PacketLine::End::waits);
    EXPECT_TRUE(a_->full());
    EXPECT_EQ(a_->write("lost", 4), -1) << "nobody is there yet";
    b_.emplace(right_[0].get(), PacketLine::End::greets);
    carry();
    a_->receive();
    EXPECT_FALSE(a_->full());
  }
  // Carries what there is in both directions; false: there was nothing.
  bool carry() {
    bool any = false;
    for (auto [from, to] : {std::pair{&left_[1], &right_[1]}, std::pair{&right_[1], &left_[1]}}) {
      char packet[16 << 10];
      for (ssize_t n; (n = ::recv(from->get(), packet, sizeof packet, 0)) > 0;) {
        any = true;
        ++seen_;
        largest_ = std::max(largest_, static_cast<size_t>(n));
        if (!loses_(seen_)) {
          EXPECT_EQ(::send(to->get(), packet, static_cast<size_t>(n), 0), n);
        }
      }
    }
    return any;
  }
  static std::string take(PacketLine& line) {
    std::string all;
    char piece[5000];
    for (ssize_t n; (n = line.read(piece, sizeof piece)) > 0;) all.append(piece, static_cast<size_t>(n));
    line.acknowledge();
    return all;
  }
  // Sends all of it from `from` to `to`, reminding whenever nothing moves.
  std::string send_through(PacketLine& from, PacketLine& to, const std::string& text) {
    std::string got;
    size_t sent = 0;
    for (int idle = 0; got.size() < text.size() && idle < 10'000;) {
      if (sent < text.size())
        if (ssize_t n = from.write(text.data() + sent, text.size() - sent); n > 0) sent += static_cast<size_t>(n);
      const bool moved = carry();
      const std::string more = take(to);
      got += more;
      from.receive();
      if (moved || !more.empty()) continue;
      ++idle;
      from.remind();
      to.remind();
    }
    return got;
  }

  Fd left_[2], right_[2];
  std::optional<PacketLine> a_, b_;
  std::function<bool(size_t)> loses_ = [](size_t) { return false; };
  size_t seen_ = 0, largest_ = 0;
};

std::string noise(size_t size) {
  std::mt19937 random(7);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST_F(Lines, CarryBytesBothWays) {
  const std::string text = noise(3'000'000);
  EXPECT_TRUE(send_through(*a_, *b_, text) == text);
  EXPECT_TRUE(send_through(*b_, *a_, text) == text);
  EXPECT_LE(largest_, PacketLine::kDeviceUnit + 14);
  EXPECT_FALSE(a_->waiting()) << "everything was taken, and that was told";
}

TEST_F(Lines, SendNoMoreThanTheWindow) {
  const std::string text = noise(2 * PacketLine::kWindow);
  EXPECT_EQ(a_->write(text.data(), text.size()), static_cast<ssize_t>(PacketLine::kWindow));
  EXPECT_TRUE(a_->full());
  EXPECT_EQ(a_->write(text.data(), 1), -1);
  EXPECT_EQ(errno, EAGAIN);
  carry();
  b_->receive();  // arrived, but nobody has read it
  b_->acknowledge();
  carry();
  a_->receive();
  EXPECT_TRUE(a_->full());
  EXPECT_EQ(take(*b_).size(), PacketLine::kWindow);
  carry();
  a_->receive();
  EXPECT_FALSE(a_->full());
}

TEST_F(Lines, ALostPacketIsSentAgain) {
  const std::string text = noise(1'000'000);
  for (size_t each : {2, 3, 5, 50}) {
    // By chance: a loss that keeps step with the reminders would always hit the same one.
    loses_ = [each, chance = std::mt19937(static_cast<unsigned>(each))](size_t) mutable {
      return chance() % each == 0;
    };
    ASSERT_TRUE(send_through(*a_, *b_, text) == text) << each;
    ASSERT_TRUE(send_through(*b_, *a_, text) == text) << each;
  }
}

// A packet as anybody at the other end could make it.
std::string packet_of(uint64_t at, uint64_t taken, uint32_t size, const std::string& data, uint8_t flag = 0) {
  std::string packet(12, '\2');
  const uint16_t type = htons(PacketLine::kType);
  packet.append(reinterpret_cast<const char*>(&type), sizeof type);
  packet += static_cast<char>(flag);
  packet += '\0';
  for (uint64_t value : {at, taken}) packet.append(reinterpret_cast<const char*>(&value), sizeof value);
  packet.append(reinterpret_cast<const char*>(&size), sizeof size);
  return packet + data;
}

TEST_F(Lines, StrangePacketsAreNothing) {
  std::mt19937 random(3);
  auto send = [&](const std::string& packet) {
    ASSERT_EQ(::send(right_[1].get(), packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
  };
  for (int i = 0; i < 1000; ++i) {
    send(noise(1 + random() % 100));
    if (i % 100 == 0) {
      EXPECT_EQ(take(*b_), "");
    }
  }
  ASSERT_EQ(b_->write("hello", 5), 5);
  send(packet_of(0, 6, 0, ""));                          // has taken more than was sent
  send(packet_of(0, UINT64_MAX, 0, ""));                 // the same
  send(packet_of(UINT64_MAX - 1, 0, 4, "wrap"));         // begins in the middle of nowhere, and ends at the beginning
  send(packet_of(0, 0, UINT32_MAX, "short"));            // longer than it is
  send(packet_of(0, 0, 6, "short"));                     // by one
  send(packet_of(0, 0, 3, "right", 200).substr(0, 30));  // no whole header
  EXPECT_EQ(take(*b_), "");
  EXPECT_TRUE(b_->waiting()) << "nobody has taken it";
  send(packet_of(0, 5, 5, "right"));
  EXPECT_EQ(take(*b_), "right");
  send(packet_of(2, 0, 5, "ghtly"));  // what is known of it is not read twice; less was taken than before: no
  EXPECT_EQ(take(*b_), "ly");
}

// Whoever sends more than the window may not make the other end keep it.
TEST_F(Lines, KeepNoMoreThanTheWindow) {
  const std::string piece(PacketLine::kMostData, 'x');
  for (size_t at = 0; at < 4 * PacketLine::kWindow; at += piece.size()) {
    const std::string packet = packet_of(at, 0, static_cast<uint32_t>(piece.size()), piece);
    ASSERT_EQ(::send(right_[1].get(), packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
    b_->receive();
  }
  EXPECT_LE(take(*b_).size(), PacketLine::kWindow);
}

// A socket without room: the word is owed until there is some.
TEST_F(Lines, WhatCouldNotBeToldIsToldLater) {
  ASSERT_EQ(a_->write("word", 4), 4);
  carry();
  std::string filler(1000, 'f');
  while (::send(right_[0].get(), filler.data(), filler.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_EQ(take(*b_), "word");
  EXPECT_TRUE(b_->owes_word());
  loses_ = [](size_t) { return true; };
  carry();
  loses_ = [](size_t) { return false; };
  b_->acknowledge();
  EXPECT_FALSE(b_->owes_word());
  carry();
  a_->receive();
  EXPECT_FALSE(a_->waiting());
}

TEST_F(Lines, TheEndIsTold) {
  ASSERT_EQ(a_->write("last", 4), 4);
  carry();
  right_[1].reset();
  char piece[10];
  EXPECT_EQ(b_->read(piece, sizeof piece), 4);
  EXPECT_EQ(b_->read(piece, sizeof piece), 0);
}

}  // namespace
}  // namespace isola::guest
