#include "dialect/e2b/metrics.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cmath>

#include "sandbox/bell.h"

namespace isola::e2b {

using sandbox::BoxPtr;

namespace {

constexpr size_t kMostSeen = 1000;
constexpr auto kPatience = std::chrono::minutes(30);               // nobody has asked for so long
constexpr auto kBetweenFirstTwo = std::chrono::milliseconds(200);  // long enough to see what it does

bool can_be_looked_at(const BoxPtr& box) {
  auto state = box->state();
  return state == State::running || state == State::frozen;
}

}  // namespace

std::optional<double> History::cpu_share(uint64_t cpu_usec, Clock::time_point now) {
  auto before = std::exchange(before_, std::pair(cpu_usec, now));
  if (!before || now <= before->second) return std::nullopt;
  // It was resumed meanwhile, and counts from nothing.
  const uint64_t used = cpu_usec < before->first ? cpu_usec : cpu_usec - before->first;
  return static_cast<double>(used) / std::chrono::duration<double, std::micro>(now - before->second).count();
}

void History::add(Measured measured, Clock::time_point now) {
  newest_ = measured;
  looked_ = now;
  // A little early is still its time.
  if (!steps_.empty() && now - step_ < kEvery - kFresh) return;
  step_ = now;
  steps_.push_back(measured);
  if (steps_.size() > kKept) steps_.pop_front();
}

std::vector<Measured> History::all() const {
  std::vector<Measured> out(steps_.begin(), steps_.end());
  if (newest_ && (out.empty() || out.back().at != newest_->at)) out.push_back(*newest_);
  return out;
}

Task<Result<bool>> Metrics::look(BoxPtr box) {
  ISOLA_CO_TRY(auto stats, co_await service_->stats(box));
  auto cached = co_await service_->page_cache(box);
  auto record = box->record();
  const auto now = Clock::now();
  Measured out;
  out.at = sandbox::now_millis();
  out.cpus = static_cast<int>(std::max(1.0, std::ceil(record.limits.cpus)));
  out.memory_cache = std::min(stats.memory_bytes, cached.value_or(0));
  out.memory_used = stats.memory_bytes - out.memory_cache;
  out.memory_total = record.limits.memory;
  out.disk_used = stats.disk_bytes;
  out.disk_total = record.limits.disk;
  std::lock_guard lock(mutex_);
  auto at = seen_.find(box->id());
  if (at == seen_.end()) co_return fail(Code::unavailable, "too many sandboxes are looked at");
  auto share = at->second.history.cpu_share(stats.cpu_usec, now);
  if (!share) co_return false;
  out.cpu_percent = std::round(std::min(100.0, 100 * *share / out.cpus) * 100) / 100;
  at->second.history.add(out, now);
  co_return true;
}

void Metrics::begin(const BoxPtr& box) {
  const auto now = Clock::now();
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    if (auto at = seen_.find(box->id()); at != seen_.end()) {
      at->second.asked = now;
      return;
    }
    if (seen_.size() >= kMostSeen) {
      auto asked = [](const auto& a, const auto& b) { return a.second.asked < b.second.asked; };
      seen_.erase(std::ranges::min_element(seen_, asked));
    }
    auto& seen = seen_[box->id()];
    seen.asked = now;
    number = seen.number = ++begun_;
  }
  boost::asio::co_spawn(box->home(), keep_looking(box, box->id(), number), boost::asio::detached);
}

Task<void> Metrics::keep_looking(std::weak_ptr<sandbox::Box> box, std::string id, uint64_t number) {
  // Neither is kept by being looked at.
  auto weak = weak_from_this();
  for (;;) {
    sandbox::Bell never;
    (void)co_await never.wait_for(never.ticket(), History::kEvery);
    auto self = weak.lock();
    if (!self) co_return;
    auto here = box.lock();
    const bool over = !here || here->state() == State::ended;
    {
      std::lock_guard lock(self->mutex_);
      auto at = self->seen_.find(id);
      if (at == self->seen_.end() || at->second.number != number) co_return;
      if (over || Clock::now() - at->second.asked > kPatience) {
        self->seen_.erase(at);
        co_return;
      }
    }
    if (can_be_looked_at(here)) (void)co_await self->look(here);
  }
}

// The first look at one says nothing of its CPU: all that are new are waited for together.
Task<Result<void>> Metrics::look_at_all(const std::vector<BoxPtr>& boxes) {
  auto self = shared_from_this();
  std::vector<BoxPtr> again;
  Result<void> done;
  for (const auto& box : boxes) {
    begin(box);
    if (!can_be_looked_at(box)) continue;
    {
      std::lock_guard lock(mutex_);
      auto at = seen_.find(box->id());
      if (at != seen_.end() && at->second.history.is_fresh(Clock::now())) continue;
    }
    auto known = co_await look(box);
    if (!known && done) done = std::unexpected(known.error());
    if (known && !*known) again.push_back(box);
  }
  if (again.empty()) co_return done;
  sandbox::Bell never;
  (void)co_await never.wait_for(never.ticket(), kBetweenFirstTwo);
  for (const auto& box : again) {
    auto known = co_await look(box);
    if (!known && done) done = std::unexpected(known.error());
  }
  co_return done;
}

Task<Result<std::vector<Measured>>> Metrics::of(BoxPtr box) {
  std::vector<BoxPtr> one{box};
  auto looked = co_await look_at_all(one);
  // Paused in the middle of it: what there was before is the answer.
  if (!looked && can_be_looked_at(box)) co_return std::unexpected(std::move(looked).error());
  std::lock_guard lock(mutex_);
  auto at = seen_.find(box->id());
  if (at == seen_.end()) co_return std::vector<Measured>();
  co_return at->second.history.all();
}

Task<std::map<std::string, Measured>> Metrics::newest_of(std::vector<BoxPtr> boxes) {
  (void)co_await look_at_all(boxes);
  std::map<std::string, Measured> out;
  std::lock_guard lock(mutex_);
  for (const auto& box : boxes) {
    auto at = seen_.find(box->id());
    if (at != seen_.end() && at->second.history.newest()) out[box->id()] = *at->second.history.newest();
  }
  co_return out;
}

}  // namespace isola::e2b
