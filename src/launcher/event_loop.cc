#include "launcher/event_loop.h"

#include <sys/epoll.h>

#include <algorithm>

namespace isola::launcher {

Result<EventLoop> EventLoop::make() {
  EventLoop loop;
  loop.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop.epoll_) return sys_error("cannot create an epoll");
  return loop;
}

Result<void> EventLoop::watch(int fd, uint32_t events, Handler handler) {
  auto known = watches_.find(fd);
  const uint32_t serial = known != watches_.end() ? known->second.serial : ++next_serial_;
  epoll_event event{};
  event.events = events;
  event.data.u64 = uint64_t{serial} << 32 | static_cast<uint32_t>(fd);
  int op = known != watches_.end() ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (::epoll_ctl(epoll_.get(), op, fd, &event) < 0) return sys_error("cannot watch a descriptor");
  watches_[fd] = {serial, std::make_shared<Handler>(std::move(handler))};
  return {};
}

void EventLoop::unwatch(int fd) {
  if (watches_.erase(fd)) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::after(std::chrono::nanoseconds delay, std::function<void()> action) {
  TimerId id{Clock::now() + delay, ++next_timer_};
  timers_.emplace(id, std::move(action));
  return id;
}

Result<void> EventLoop::run() {
  while (!stopped_) {
    int timeout = -1;
    if (!timers_.empty()) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now()).count();
      timeout = static_cast<int>(std::clamp<int64_t>(left, 0, 1 << 30));
    }
    epoll_event ready[64];
    int n = ::epoll_wait(epoll_.get(), ready, 64, timeout);
    if (n < 0 && errno != EINTR) return sys_error("cannot wait for events");
    for (int i = 0; i < n; ++i) {
      auto found = watches_.find(static_cast<int>(ready[i].data.u64 & 0xffffffff));
      // Removed by a handler before it in this turn, or even replaced by another of the same number.
      if (found == watches_.end() || found->second.serial != ready[i].data.u64 >> 32) continue;
      auto handler = found->second.handler;  // keeps it alive even if it removes itself
      (*handler)(ready[i].events);
    }
    while (!timers_.empty() && timers_.begin()->first.first <= Clock::now() && !stopped_) {
      auto action = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      action();
    }
  }
  stopped_ = false;  // it can be run again
  return {};
}

}  // namespace isola::launcher
