// Pools: how many parked sandboxes of each template the launcher is to keep.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;

namespace {

PoolBounds bounds_of(const Settings& settings, uint64_t free_memory) {
  return {.least = settings.pool, .most = settings.pool_most, .free_memory = free_memory};
}

}  // namespace

// The launcher is told only when the number changes: a create costs it nothing.
void Service::note_demand(const std::string& digest, Birth birth, bool cold) {
  if (birth == Birth::pooled) ++counters.pool_hits;
  if (birth != Birth::pooled && !cold) ++counters.pool_misses;
  auto settings = this->settings();
  uint32_t count = 0;
  {
    std::lock_guard lock(pool_mutex_);
    auto& pool = pools_[digest];
    pool.policy.wanted(now_millis());
    // Fewer: when the sweep finds that it stays so. How much memory is free is asked only where it could matter.
    if (pool.policy.target(now_millis(), bounds_of(settings, UINT64_MAX)) <= pool.asked) return;
    count = pool.policy.target(now_millis(), bounds_of(settings, available_memory()));
    if (count <= pool.asked) return;
    pool.asked = count;
  }
  net::co_spawn(
      parts_.next_worker(),
      [launcher = parts_.launcher, digest, count]() -> Task<void> { (void)co_await launcher->park(digest, count); },
      net::detached);
}

// Also what a launcher that was restarted has forgotten.
Task<void> Service::fit_pools() {
  auto bounds = bounds_of(settings(), available_memory());
  std::vector<std::pair<std::string, uint32_t>> changed;
  {
    std::lock_guard lock(pool_mutex_);
    for (auto& [digest, pool] : pools_) {
      uint32_t count = pool.policy.target(now_millis(), bounds);
      if (count == pool.asked) continue;
      pool.asked = count;
      changed.emplace_back(digest, count);
    }
  }
  for (const auto& [digest, count] : changed) (void)co_await parts_.launcher->park(digest, count);
}

void Service::forget_pools() {
  std::lock_guard lock(pool_mutex_);
  for (auto& [digest, pool] : pools_) pool.asked = 0;
}

}  // namespace isola::sandbox
