// How much work of a kind is done in a second, whoever asks for it.
//
//   Throttle throttle(50'000);
//   if (!throttle.take(sandboxes.size())) …              // later
//
// What is taken at once may be more than there is: the next ones wait for it. Any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>

namespace isola::e2b {

class Throttle {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Throttle(double per_second) : per_second_(per_second), left_(per_second) {}

  bool take(size_t work, Clock::time_point now = Clock::now()) {
    std::lock_guard lock(mutex_);
    if (now > at_)
      left_ = std::min(per_second_, left_ + std::chrono::duration<double>(now - at_).count() * per_second_);
    at_ = std::max(at_, now);
    if (left_ <= 0) return false;
    left_ -= static_cast<double>(work);
    return true;
  }

 private:
  const double per_second_;
  std::mutex mutex_;
  double left_;
  Clock::time_point at_{};
};

}  // namespace isola::e2b
