#include "dialect/e2b/metrics.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cmath>

namespace isola::e2b {

using sandbox::BoxPtr;

namespace {

constexpr size_t kMostSeen = 1000, kMostSeenOfProject = 250;
constexpr auto kPatience = std::chrono::minutes(30);               // nobody has asked for so long
constexpr auto kBetweenFirstTwo = std::chrono::milliseconds(200);  // long enough to see what it does

bool can_be_looked_at(const BoxPtr& box) {
  auto state = box->state();
  return state == State::running || state == State::frozen;
}

}  // namespace

std::optional<double> History::cpu_share(uint64_t cpu_usec, Clock::time_point now) {
  if (before_ && now - before_->second < kShortest) return std::nullopt;
  auto before = std::exchange(before_, std::pair(cpu_usec, now));
  if (!before) return std::nullopt;
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
  for (bool waited = false;; waited = true) {
    const uint64_t ticket = looked_.ticket();
    {
      std::lock_guard lock(mutex_);
      auto at = seen_.find(box->id());
      if (at == seen_.end()) co_return fail(Code::unavailable, "too many sandboxes are looked at");
      if (waited && at->second.history.is_fresh(Clock::now())) co_return true;
      if (!std::exchange(at->second.looking, true)) break;
    }
    co_await looked_.wait(ticket);
  }
  // However it ends, also where whoever asked is gone.
  struct Done {
    Metrics& metrics;
    std::string id;
    ~Done() {
      {
        std::lock_guard lock(metrics.mutex_);
        if (auto at = metrics.seen_.find(id); at != metrics.seen_.end()) at->second.looking = false;
      }
      metrics.looked_.ring();
    }
  } done{*this, box->id()};
  co_return co_await measure(box);
}

Task<Result<bool>> Metrics::measure(BoxPtr box) {
  ISOLA_CO_TRY(auto stats, co_await service_->stats(box));
  const auto now = Clock::now();  // of what was just counted: what follows may take its time
  auto cached = co_await service_->page_cache(box);
  auto record = box->record();
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

// Of the asking project's own, the one that nobody has asked about for the longest, once it has its share; and where
// there are too many all the same, of the project that has most.
void Metrics::make_room(const std::string& project) {
  std::map<std::string, size_t> shares;
  for (const auto& [id, seen] : seen_) ++shares[seen.project];
  std::string whose = project;
  if (shares[project] < kMostSeenOfProject) {
    if (seen_.size() < kMostSeen) return;
    auto fewer = [](const auto& a, const auto& b) { return a.second < b.second; };
    whose = std::ranges::max_element(shares, fewer)->first;
  }
  auto oldest = seen_.end();
  for (auto at = seen_.begin(); at != seen_.end(); ++at)
    if (at->second.project == whose && (oldest == seen_.end() || at->second.asked < oldest->second.asked)) oldest = at;
  if (oldest != seen_.end()) seen_.erase(oldest);
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
    make_room(box->project());
    auto& seen = seen_[box->id()];
    seen.project = box->project();
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
