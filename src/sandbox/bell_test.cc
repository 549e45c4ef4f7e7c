#include "sandbox/bell.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_future.hpp>
#include <deque>
#include <thread>

namespace isola::sandbox {
namespace {

namespace net = boost::asio;

struct Threads {
  net::io_context one, two;
  net::executor_work_guard<net::io_context::executor_type> keep_one{one.get_executor()}, keep_two{two.get_executor()};
  std::thread a{[this] { one.run(); }}, b{[this] { two.run(); }};
  ~Threads() {
    keep_one.reset();
    keep_two.reset();
    a.join();
    b.join();
  }
};

TEST(Bell, ARingThatCameBeforeTheWaitIsNotLost) {
  Threads threads;
  Bell bell;
  uint64_t ticket = bell.ticket();
  bell.ring();
  auto waited = net::co_spawn(threads.one, bell.wait_for(ticket, std::chrono::hours(1)), net::use_future);
  EXPECT_TRUE(waited.get());
}

TEST(Bell, TheTimeCanBeUpFirst) {
  Threads threads;
  Bell bell;
  auto waited = net::co_spawn(threads.one, bell.wait_for(bell.ticket(), std::chrono::milliseconds(5)), net::use_future);
  EXPECT_FALSE(waited.get());
}

// Producer and consumer on two threads: every item arrives, whatever the order of looks and rings.
TEST(Bell, NoWakeUpIsMissedBetweenThreads) {
  Threads threads;
  Bell bell;
  std::mutex mutex;
  std::deque<int> queue;
  constexpr int kItems = 20000;
  auto consume = [&]() -> Task<int> {
    int seen = 0;
    while (seen < kItems) {
      uint64_t ticket = bell.ticket();
      bool empty = false;
      {
        std::lock_guard lock(mutex);
        empty = queue.empty();
        while (!queue.empty()) {
          if (queue.front() != seen) co_return -1;
          queue.pop_front();
          ++seen;
        }
      }
      if (empty) co_await bell.wait(ticket);
    }
    co_return seen;
  };
  auto consumed = net::co_spawn(threads.one, consume(), net::use_future);
  net::post(threads.two, [&] {
    for (int i = 0; i < kItems; ++i) {
      {
        std::lock_guard lock(mutex);
        queue.push_back(i);
      }
      bell.ring();
    }
  });
  EXPECT_EQ(consumed.get(), kItems);
}

}  // namespace
}  // namespace isola::sandbox
