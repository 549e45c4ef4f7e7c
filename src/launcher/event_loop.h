// One thread, one epoll: descriptors with handlers and timers in one heap. Handlers may add and remove anything,
// themselves included.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/fd.h"

namespace isola::launcher {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Handler = std::function<void(uint32_t events)>;
  using TimerId = std::pair<Clock::time_point, uint64_t>;

  static Result<EventLoop> make();

  // A descriptor that is watched already gets these events and this handler instead.
  Result<void> watch(int fd, uint32_t events, Handler handler);
  void unwatch(int fd);
  TimerId after(std::chrono::nanoseconds delay, std::function<void()> action);
  void cancel(const TimerId& timer) { timers_.erase(timer); }

  // Until stop(). Each turn takes what is ready, then what is due.
  Result<void> run();
  void stop() { stopped_ = true; }

 private:
  // A number may be closed, and given out anew by the kernel, within one turn: an event of the old one must not reach
  // the new one's handler. So each watch has a number of its own that no other ever had.
  struct Watch {
    uint32_t serial = 0;
    std::shared_ptr<Handler> handler;
  };
  Fd epoll_;
  std::map<int, Watch> watches_;
  uint32_t next_serial_ = 0;
  std::map<TimerId, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;
  bool stopped_ = false;
};

}  // namespace isola::launcher
