#include "launcher/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>

#include <optional>
#include <string>
#include <vector>

#include "kernel/process.h"

namespace isola::launcher {
namespace {

using std::chrono::milliseconds;

EventLoop make() {
  auto loop = EventLoop::make();
  EXPECT_TRUE(loop);
  return std::move(*loop);
}

TEST(EventLoop, TimersComeInOrder) {
  auto loop = make();
  std::string order;
  loop.after(milliseconds(3), [&] { order += "3", loop.stop(); });
  loop.after(milliseconds(1), [&] { order += "1"; });
  loop.after(milliseconds(2), [&] { order += "2"; });
  auto never = loop.after(milliseconds(1), [&] { order += "x"; });
  loop.after(milliseconds(0), [&] { order += "0", loop.cancel(never); });
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(order, "0123");
}

TEST(EventLoop, EqualTimersComeInTheOrderTheyWereSet) {
  auto loop = make();
  std::string order;
  for (char c : std::string("abcdef")) loop.after(milliseconds(0), [&, c] { order += c; });
  loop.after(milliseconds(5), [&] { loop.stop(); });
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(order, "abcdef");
}

TEST(EventLoop, ATimerMaySetAndCancelOthers) {
  auto loop = make();
  int runs = 0;
  std::function<void()> again = [&] {
    if (++runs == 5) return loop.stop();
    auto cancelled = loop.after(milliseconds(0), [&] { runs += 100; });
    loop.cancel(cancelled);
    loop.cancel(cancelled);
    loop.after(milliseconds(0), again);
  };
  loop.after(milliseconds(0), again);
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(runs, 5);
}

struct Pipe {
  Fd read, write;
  Pipe() {
    auto ends = kernel::make_pipe();
    read = std::move(ends->first), write = std::move(ends->second);
    EXPECT_EQ(::write(write.get(), "x", 1), 1);
  }
};

TEST(EventLoop, AHandlerMayRemoveItself) {
  auto loop = make();
  Pipe pipe;
  int calls = 0;
  auto kept = std::make_shared<int>(7);
  ASSERT_TRUE(loop.watch(pipe.read.get(), EPOLLIN, [&, kept](uint32_t) {
    ++calls;
    loop.unwatch(pipe.read.get());
    EXPECT_EQ(*kept, 7) << "what the handler holds must live until it returns";
    loop.after(milliseconds(1), [&] { loop.stop(); });
  }));
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, AHandlerMayRemoveAnotherThatIsReady) {
  auto loop = make();
  Pipe a, b;
  int calls = 0;
  auto once = [&](uint32_t) {
    ++calls;
    loop.unwatch(a.read.get());
    loop.unwatch(b.read.get());
    loop.after(milliseconds(1), [&] { loop.stop(); });
  };
  ASSERT_TRUE(loop.watch(a.read.get(), EPOLLIN, once));
  ASSERT_TRUE(loop.watch(b.read.get(), EPOLLIN, once));
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(calls, 1);
}

TEST(EventLoop, WatchingAgainReplacesTheHandler) {
  auto loop = make();
  Pipe pipe;
  std::string calls;
  ASSERT_TRUE(loop.watch(pipe.read.get(), EPOLLIN, [&](uint32_t) {
    calls += "a";
    ASSERT_TRUE(loop.watch(pipe.read.get(), EPOLLIN, [&](uint32_t) { calls += "b", loop.stop(); }));
  }));
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(calls, "ab");
}

TEST(EventLoop, WhatCannotBeWatchedSaysSo) {
  auto loop = make();
  EXPECT_FALSE(loop.watch(-1, EPOLLIN, [](uint32_t) {}));
  loop.unwatch(12345);  // never watched: fine
}

// A hang-up is told even to one that asked for nothing.
TEST(EventLoop, HangUp) {
  auto loop = make();
  Pipe pipe;
  char c;
  ASSERT_EQ(::read(pipe.read.get(), &c, 1), 1);
  uint32_t got = 0;
  ASSERT_TRUE(loop.watch(pipe.read.get(), 0, [&](uint32_t events) { got = events, loop.stop(); }));
  pipe.write.reset();
  ASSERT_TRUE(loop.run());
  EXPECT_TRUE(got & EPOLLHUP);
}

// Both are ready in one turn; whichever comes first replaces the other by a new pipe that gets the same number.
TEST(EventLoop, AnEventOfAClosedDescriptorIsNotTakenForItsSuccessors) {
  auto loop = make();
  Pipe pipes[2];
  std::optional<std::pair<Fd, Fd>> successor;
  int calls = 0, wrong = 0;
  for (int i : {0, 1})
    ASSERT_TRUE(loop.watch(pipes[i].read.get(), EPOLLIN, [&, i](uint32_t) {
      if (++calls > 1) return;
      Pipe& other = pipes[1 - i];
      const int number = other.read.get();
      loop.unwatch(number);
      other.read.reset();
      successor = std::move(*kernel::make_pipe());
      ASSERT_EQ(successor->first.get(), number) << "the kernel gives out the lowest free number";
      ASSERT_TRUE(loop.watch(number, EPOLLIN, [&](uint32_t) { ++wrong; }));
      loop.unwatch(pipes[i].read.get());
    }));
  loop.after(milliseconds(20), [&] { loop.stop(); });
  ASSERT_TRUE(loop.run());
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(wrong, 0) << "nothing was ever written to the new pipe";
}

}  // namespace
}  // namespace isola::launcher
