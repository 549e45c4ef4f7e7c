// A coroutine waits on one thread until somebody on any thread rings.
//
//   Bell bell;
//   while (queue_is_empty()) co_await bell.wait();      // always look again: rings are not counted
//   …elsewhere, after changing what the waiter looks at, under the same mutex…
//   bell.ring();
//
// Shared state and the decision to wait stand under the caller's mutex; a ring between the look and the wait is not
// lost, because wait() returns at once when a ring came since the last one. Any number may wait.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "base/task.h"

namespace isola::sandbox {

class Bell {
 public:
  Bell();
  ~Bell();
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;

  // What a waiter saw: wait(ticket) returns at once if a ring came after it was taken.
  uint64_t ticket() const;
  Task<void> wait(uint64_t ticket);
  // false: the time was up first.
  Task<bool> wait_for(uint64_t ticket, std::chrono::steady_clock::duration time);
  void ring();

 private:
  struct Waiter;
  struct Inner;
  std::shared_ptr<Inner> inner_;
};

}  // namespace isola::sandbox
