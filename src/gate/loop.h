// One thread, one epoll, many thousands of descriptors: what the gate runs on.
//
// A handler is an object, not a closure: a flow costs no allocation per event. Whoever is done with a handler retires
// it; it is destroyed when the turn's events are all handled, so an event that was already fetched finds it alive (and
// is not delivered).
//
//   loop.add(fd, EPOLLIN | EPOLLET, *flow);
//   …
//   fd.reset();
//   loop.retire(std::move(flow));
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::gate {

using Clock = std::chrono::steady_clock;

class Handler {
 public:
  virtual ~Handler() = default;
  virtual void on_ready(uint32_t events) = 0;

 private:
  friend class Loop;
  bool retired_ = false, queued_ = false;
};

// For the few that do one thing only.
class Callback : public Handler {
 public:
  explicit Callback(std::function<void(uint32_t)> action) : action_(std::move(action)) {}
  void on_ready(uint32_t events) override { action_(events); }

 private:
  std::function<void(uint32_t)> action_;
};

class Loop {
 public:
  using TimerId = std::pair<Clock::time_point, uint64_t>;

  static Result<Loop> make();

  Result<void> add(int fd, uint32_t events, Handler& handler);
  Result<void> change(int fd, uint32_t events, Handler& handler);
  // Without closing it; closing does the same, where no other descriptor is a copy of it.
  void remove(int fd);
  void retire(std::unique_ptr<Handler> handler);

  // Calls it again next turn (with no events), after everybody else had one: for a handler that has more to do.
  void again(Handler& handler) {
    if (!std::exchange(handler.queued_, true)) again_.push_back(&handler);
  }

  TimerId after(Clock::duration delay, std::function<void()> action);
  void cancel(const TimerId& timer) { timers_.erase(timer); }

  // How often it has waited for events.
  uint64_t turn() const { return turn_; }
  // The time at which this turn began: good enough for rates and timeouts, and free.
  Clock::time_point now() const { return now_; }

  Result<void> run();  // until stop()
  void stop() { stopped_ = true; }

 private:
  Fd epoll_;
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t next_timer_ = 0, turn_ = 0;
  Clock::time_point now_ = Clock::now();
  std::vector<std::unique_ptr<Handler>> retired_;
  std::vector<Handler*> again_;
  bool stopped_ = false;
};

}  // namespace isola::gate
