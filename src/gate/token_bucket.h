// A rate with a burst: tokens come in at `rate` a second, at most `burst` of them wait. A rate of 0 means no limit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gate/loop.h"

namespace isola::gate {

class TokenBucket {
 public:
  TokenBucket() = default;
  TokenBucket(double rate, double burst) : rate_(rate), burst_(burst), tokens_(burst) {}

  bool unlimited() const { return rate_ <= 0; }
  // One at once, or not at all.
  bool take(Clock::time_point now) {
    if (available(now) < 1) return false;
    spend(1);
    return true;
  }
  // How many whole tokens there are. Without a limit: plenty.
  uint64_t available(Clock::time_point now) {
    if (unlimited()) return UINT64_MAX;
    if (now > last_) {
      if (last_ != Clock::time_point())
        tokens_ = std::min(burst_, tokens_ + rate_ * std::chrono::duration<double>(now - last_).count());
      last_ = now;
    }
    return tokens_ < 1 ? 0 : static_cast<uint64_t>(tokens_);
  }
  // May go below zero: what was spent before it could be counted is paid back first.
  void spend(uint64_t count) {
    if (!unlimited()) tokens_ -= static_cast<double>(count);
  }
  // Until there are `wanted` of them.
  Clock::duration until(double wanted) const {
    if (unlimited() || tokens_ >= wanted) return Clock::duration::zero();
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>((wanted - tokens_) / rate_));
  }
  // Another rate, and nothing is forgotten.
  void set(double rate, double burst) {
    bool fresh = unlimited();
    rate_ = rate, burst_ = burst;
    tokens_ = fresh ? burst : std::min(tokens_, burst);
  }

 private:
  double rate_ = 0, burst_ = 0, tokens_ = 0;
  Clock::time_point last_{};
};

}  // namespace isola::gate
