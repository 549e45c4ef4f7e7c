#include "guest/agent/loop.h"

#include <ctime>

namespace isola::guest {

Loop::Loop() : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

Result<void> Loop::add(int fd, uint32_t events, Source* source) {
  epoll_event e{.events = events, .data = {.ptr = source}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) < 0) return sys_error("cannot wait for an fd");
  return {};
}

void Loop::modify(int fd, uint32_t events, Source* source) {
  epoll_event e{.events = events, .data = {.ptr = source}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &e);
}

void Loop::remove(int fd, Source* source) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = 0; i < count_; ++i) {
    if (batch_[i].data.ptr == source) batch_[i].data.ptr = nullptr;
  }
}

void Loop::wait(int timeout_ms) {
  int n = ::epoll_wait(epoll_.get(), batch_, kBatch, timeout_ms);
  count_ = n > 0 ? n : 0;
  for (int i = 0; i < count_; ++i) {
    if (auto* source = static_cast<Source*>(batch_[i].data.ptr)) source->on_ready(batch_[i].events);
  }
  count_ = 0;
}

int64_t now_ms() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

}  // namespace isola::guest
