#include "gate/loop.h"

#include <algorithm>

namespace isola::gate {

Result<Loop> Loop::make() {
  Loop loop;
  loop.epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!loop.epoll_) return sys_error("cannot create an epoll instance");
  return loop;
}

Result<void> Loop::add(int fd, uint32_t events, Handler& handler) {
  epoll_event event{.events = events, .data = {.ptr = &handler}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) < 0) return sys_error("cannot watch a descriptor");
  return {};
}

Result<void> Loop::change(int fd, uint32_t events, Handler& handler) {
  epoll_event event{.events = events, .data = {.ptr = &handler}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) < 0) return sys_error("cannot watch a descriptor");
  return {};
}

void Loop::remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Loop::retire(std::unique_ptr<Handler> handler) {
  handler->retired_ = true;
  retired_.push_back(std::move(handler));
}

Loop::TimerId Loop::after(Clock::duration delay, std::function<void()> action) {
  TimerId id{Clock::now() + delay, next_timer_++};
  timers_.emplace(id, std::move(action));
  return id;
}

Result<void> Loop::run() {
  epoll_event events[256];
  while (!stopped_) {
    if (!retired_.empty()) std::erase_if(again_, [](auto* handler) { return handler->retired_; });
    retired_.clear();
    int wait = -1;
    if (!timers_.empty()) {
      auto left = std::chrono::ceil<std::chrono::milliseconds>(timers_.begin()->first.first - Clock::now()).count();
      wait = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
    }
    if (!again_.empty()) wait = 0;
    int count = ::epoll_wait(epoll_.get(), events, static_cast<int>(std::size(events)), wait);
    if (count < 0 && errno != EINTR) return sys_error("cannot wait for events");
    now_ = Clock::now();
    ++turn_;
    for (int i = 0; i < count; ++i) {
      auto* handler = static_cast<Handler*>(events[i].data.ptr);
      if (!handler->retired_) handler->on_ready(events[i].events);
    }
    for (auto* handler : std::exchange(again_, {})) {
      handler->queued_ = false;
      if (!handler->retired_) handler->on_ready(0);
    }
    while (!timers_.empty() && timers_.begin()->first.first <= now_) {
      auto action = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      action();
    }
  }
  retired_.clear();
  return {};
}

}  // namespace isola::gate
