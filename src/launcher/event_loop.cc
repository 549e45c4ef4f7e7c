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
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  int op = handlers_.contains(fd) ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (::epoll_ctl(epoll_.get(), op, fd, &event) < 0) return sys_error("cannot watch a descriptor");
  handlers_[fd] = std::make_shared<Handler>(std::move(handler));
  return {};
}

void EventLoop::unwatch(int fd) {
  if (handlers_.erase(fd)) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
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
      auto found = handlers_.find(ready[i].data.fd);
      if (found == handlers_.end()) continue;  // removed by a handler before it in this turn
      auto handler = found->second;            // keeps it alive even if it removes itself
      (*handler)(ready[i].events);
    }
    while (!timers_.empty() && timers_.begin()->first.first <= Clock::now() && !stopped_) {
      auto action = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      action();
    }
  }
  return {};
}

}  // namespace isola::launcher
