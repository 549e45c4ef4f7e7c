// The guest's event loop: epoll and nothing else, because epoll survives a checkpoint and timers do not have to.
//
// A Source is told when its fd is ready. It may be removed (and destroyed) by any other Source's callback in the same
// round: remove() also strikes it from the batch of events that is being handed out.
#pragma once

#include <sys/epoll.h>

#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/fd.h"

namespace isola::guest {

class Source {
 public:
  virtual void on_ready(uint32_t events) = 0;

 protected:
  ~Source() = default;
};

// A Source that calls one member function: several fds in one object.
template <typename T, void (T::*F)(uint32_t)>
class MemberSource : public Source {
 public:
  explicit MemberSource(T* self) : self_(self) {}
  void on_ready(uint32_t events) override { (self_->*F)(events); }

 private:
  T* self_;
};

class Loop {
 public:
  Loop();
  Result<void> add(int fd, uint32_t events, Source* source);
  void modify(int fd, uint32_t events, Source* source);
  void remove(int fd, Source* source);  // call before close(fd)
  void wait(int timeout_ms);            // one round: waits, then calls every Source that is ready

 private:
  static constexpr int kBatch = 64;
  Fd epoll_;
  epoll_event batch_[kBatch];
  int count_ = 0;
};

int64_t now_ms();  // CLOCK_MONOTONIC

}  // namespace isola::guest
