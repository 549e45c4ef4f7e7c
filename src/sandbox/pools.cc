// Pools: how many parked sandboxes of each template, or warm image, the launcher is to keep.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <utility>

#include "base/ids.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;

namespace {

PoolBounds bounds_of(const Settings& settings, uint64_t free_memory, uint64_t left, uint64_t each, bool only_while) {
  return {.least = settings.pool,
          .most = settings.pool_most,
          .free_memory = free_memory,
          .left = left,
          .each = each,
          .only_while = only_while};
}

}  // namespace

// Under pool_mutex_.
uint64_t Service::left_for(const Pool& pool, const Settings& settings) const {
  if (settings.pool_memory == 0) return UINT64_MAX;
  uint64_t others = 0;
  for (const auto& [name, other] : pools_)
    if (&other != &pool) others += pool_bytes(other.asked, other.each);
  return settings.pool_memory - std::min(settings.pool_memory, others);
}

// The launcher is told only when the number changes: a create costs it nothing.
void Service::note_demand(const std::string& name, Birth birth, bool cold) {
  if (birth == Birth::pooled) ++counters.pool_hits;
  if (birth != Birth::pooled && !cold) ++counters.pool_misses;
  auto settings = this->settings();
  uint32_t count = 0;
  {
    std::lock_guard lock(pool_mutex_);
    auto [at, fresh] = pools_.try_emplace(name);
    auto& pool = at->second;
    if (fresh && is_image_id(name)) {
      pool.projects = true;
      if (auto image = parts_.store.find_image(name)) pool.each = image->memory_bytes;
    }
    pool.policy.wanted(now_millis());
    // Fewer: when the sweep finds that it stays so. How much memory is free is asked only where it could matter.
    const uint64_t left = left_for(pool, settings);
    if (pool.policy.target(now_millis(), bounds_of(settings, UINT64_MAX, left, pool.each, pool.projects)) <= pool.asked)
      return;
    // In steps: while the demand grows, not every create tells the launcher.
    auto bounds = bounds_of(settings, available_memory(), left, pool.each, pool.projects);
    bounds.ahead = pool.asked / 4;
    count = pool.policy.target(now_millis(), bounds);
    if (count <= pool.asked) return;
    pool.asked = count;
  }
  net::co_spawn(
      parts_.next_worker(),
      [launcher = parts_.launcher, name, count]() -> Task<void> { (void)co_await launcher->park(name, count); },
      net::detached);
}

// Also what a launcher that was restarted has forgotten.
Task<void> Service::fit_pools() {
  auto settings = this->settings();
  uint64_t memory = available_memory();
  std::vector<std::pair<std::string, uint32_t>> changed;
  {
    std::lock_guard lock(pool_mutex_);
    for (auto at = pools_.begin(); at != pools_.end();) {
      auto& [name, pool] = *at;
      const auto bounds = bounds_of(settings, memory, left_for(pool, settings), pool.each, pool.projects);
      uint32_t count = pool.policy.target(now_millis(), bounds);
      if (count != std::exchange(pool.asked, count)) changed.emplace_back(name, count);
      // Of what a project built, and nobody wants any more: the image may be gone by now.
      at = pool.projects && count == 0 && pool.policy.idle(now_millis()) ? pools_.erase(at) : std::next(at);
    }
  }
  for (const auto& [name, count] : changed) (void)co_await parts_.launcher->park(name, count);
}

Service::Pooling Service::pooling() const {
  Pooling all;
  std::lock_guard lock(pool_mutex_);
  for (const auto& [name, pool] : pools_) {
    if (pool.asked == 0) continue;
    ++all.pools;
    all.wanted += pool.asked;
    all.bytes += pool_bytes(pool.asked, pool.each);
  }
  return all;
}

void Service::forget_pools() {
  std::lock_guard lock(pool_mutex_);
  for (auto& [name, pool] : pools_) pool.asked = 0;
}

}  // namespace isola::sandbox
