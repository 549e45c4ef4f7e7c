// Parked jails: made ahead of time, and claimed by a launch whose settings allow it. Those of an image with memory are
// restored ahead of time, with all its processes running.
#include <algorithm>
#include <ctime>

#include "base/ids.h"
#include "base/log.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {

// A pause before parked jails are replaced, so that the work of it does not compete with the command that a claimed one
// is just about to run. While half of them are there yet, it waits for a pause of the demand: whoever comes finds one.
constexpr auto kRefillPause = std::chrono::milliseconds(5);
constexpr auto kDemandPause = std::chrono::milliseconds(50);
constexpr auto kNextPause = std::chrono::milliseconds(1);  // between two, when nobody wants one
constexpr uint32_t kMaxParked = 256;
constexpr uint32_t kMostFailures = 3;  // of one pool, which then rests
constexpr auto kRest = std::chrono::seconds(60);

}  // namespace

std::string Cells::pool_name(const std::string& name, BoundaryKind kind) {
  return name + "@" + std::string(to_string(kind));
}

std::string Cells::pool_of(const JournalEntry& entry) {
  return pool_name(entry.image.empty() ? entry.digest : entry.image, entry.kind);
}

bool Cells::claim(const LaunchRequest& request, OwnerId owner, Launched& done) {
  const std::string name = pool_name(request.image.empty() ? request.digest : request.image, chosen(request));
  claimed_ = std::chrono::steady_clock::now();
  auto it = parked_.lower_bound({name, ""});
  if (it == parked_.end() || it->first != name) {
    if (pools_.contains(name)) refill_soon();  // it may have rested long enough
    return false;
  }
  One* one = find(it->second);
  // Such a caller gets a cold one, and the parked one waits for another caller.
  if (!fit(*one, request)) return false;
  leave_pool(*one);
  if (auto pool = pools_.find(name); pool != pools_.end()) pool->second.failures = 0;
  refill_soon();
  auto claimed = claim(*one, request);
  // Its processes stand still until it is known that what holds them is in force.
  if (claimed && (one->state == State::frozen || one->freezing)) claimed = let_go_on(*one);
  if (!claimed) {
    log::warn("launcher", "{}: a parked jail cannot be claimed: {}", one->entry.id, claimed.error().message);
    end(*one, EndReason::boundary_failure);
    return false;  // a cold one instead
  }
  set_owner(*one, owner);
  count_live(*one, true);
  one->launched = std::move(done);
  hand_over(*one, Birth::pooled);
  return true;
}

// Whether a parked jail can be made what the caller wants; if not, it is as it was. Open files are fixed when it is
// parked. The size of its layer is too with some stores, or at some sizes, or on some machines: that shows by trying.
bool Cells::fit(One& one, const LaunchRequest& request) {
  if (one.limits.open_files != request.limits.open_files) return false;
  if (boundary_of(one).has_fixed_limits() &&
      (one.limits.memory != request.limits.memory || one.limits.pids != request.limits.pids ||
       one.limits.disk != request.limits.disk))
    return false;
  // Its processes have their memory already: a kernel that is told of a lower limit would end some of them.
  if (one.restored && request.limits.memory < one.limits.memory) return false;
  one.latency = Latency{};  // what was done before the caller came is not the caller's time
  if (one.limits.disk == request.limits.disk) return true;
  Stopwatch watch(one.latency);
  auto resized = parts_.layers.resize(layer_of(one.entry), {.bytes = request.limits.disk});
  if (!resized && resized.error().code != Code::unsupported && resized.error().code != Code::denied &&
      resized.error().code != Code::invalid) {
    // It may have changed half way: nobody's any more.
    log::warn("launcher", "{}: the layer of a parked jail cannot be resized: {}", one.entry.id,
              resized.error().message);
    end(one, EndReason::boundary_failure);
  }
  if (!resized) return false;
  watch.lap(Step::claim);
  return true;
}

Result<void> Cells::claim(One& one, const LaunchRequest& request) {
  Stopwatch watch(one.latency);
  ISOLA_TRY(auto group, parts_.cgroups.adopt(one.entry.id));
  Result<void> set;
  if (group_limits(one.limits) != group_limits(request.limits)) set = group.set(group_limits(request.limits));
  auto installed = group.limits();
  group.release();
  ISOLA_CHECK(std::move(set));
  // A claim is a birth: what is installed is compared before the guest may run anything for its new owner. Also where
  // nothing had to be set, since it has waited for long, and others on this machine can write to its group.
  if (!installed) return std::unexpected(installed.error());
  ISOLA_CHECK(boundary_of(one).verify_limits(request.limits, *installed));
  if (one.limits.disk != request.limits.disk)
    ISOLA_CHECK(image::verify_limit(parts_.layers, layer_of(one.entry), request.limits.disk));
  one.limits = request.limits;
  one.entry.ephemeral = request.ephemeral;
  one.entry.roots_own = request.roots_own;
  one.entry.birth = Birth::pooled;
  one.entry.created = static_cast<int64_t>(::time(nullptr));
  if (request.limits.wall_time.count() > 0) one.entry.deadline = boot_clock() + request.limits.wall_time.count();
  ISOLA_CHECK(parts_.journal.write(one.entry));
  watch.lap(Step::claim);
  return {};
}

Result<void> Cells::park(const std::string& name, uint32_t count, BoundaryKind kind) {
  if (count > kMaxParked) return fail(Code::invalid, "at most " + std::to_string(kMaxParked) + " jails can be parked");
  ISOLA_TRY(LaunchRequest request, request_to_park(name, kind));
  request.allow_unquotaed = true;  // refill() sees to it that none is made without
  ISOLA_CHECK(check(request));
  ISOLA_CHECK(mount_image(request.digest));
  auto& pool = pools_[pool_name(name, kind)];
  pool.name = name;
  pool.kind = kind;
  pool.wanted = count;
  pool.failures = 0;
  refill_soon();
  return {};
}

// As whoever claims it is most likely to want it.
Result<LaunchRequest> Cells::request_to_park(const std::string& name, BoundaryKind kind) const {
  LaunchRequest request{.digest = name, .boundary = {.wish = wish_for(kind)}, .ephemeral = false};
  if (!is_image_id(name)) {
    ISOLA_CHECK(choose_boundary(request));
    return request;
  }
  request.digest.clear();
  request.image = name;
  request.forked = true;
  ISOLA_CHECK(resolve_image(request));
  ISOLA_TRY(auto image, store_.find(name));
  request.limits = {.cpus = static_cast<double>(image.limits.milli_cpus) / 1000,
                    .memory = image.limits.memory,
                    .pids = image.limits.pids,
                    .disk = image.limits.disk,
                    .open_files = image.limits.open_files,
                    .io_bytes_per_second = image.limits.io_bytes_per_second};
  return request;
}

void Cells::refill_soon() {
  if (refill_) parts_.loop.cancel(*refill_);
  const bool short_of_some = std::ranges::any_of(pools_, [](const auto& one) {
    const Pool& pool = one.second;
    return 2 * (pool.have - (pool.making ? 1 : 0)) < pool.wanted;
  });
  const auto due = claimed_ + (short_of_some ? kRefillPause : kDemandPause);
  const auto now = std::chrono::steady_clock::now();
  const auto pause = std::max<std::chrono::nanoseconds>(due - now, kNextPause);
  refill_ = parts_.loop.after(pause, [this] { refill_.reset(), refill(); });
}

// One at a time: a burst of creates is not slowed by a burst of refills behind it.
void Cells::refill() {
  for (auto it = pools_.begin(); it != pools_.end();) {
    auto& [name, pool] = *it;
    while (pool.have > pool.wanted) {
      auto surplus = parked_.lower_bound({name, ""});
      if (surplus == parked_.end() || surplus->first != name) break;  // the rest is still being made
      One& one = *find(surplus->second);
      one.launched = nullptr;  // nothing failed
      end(one, EndReason::killed);
    }
    it = pool.wanted == 0 && pool.have == 0 ? pools_.erase(it) : std::next(it);
  }
  for (auto& [name, pool] : pools_) {
    const bool rests = pool.failures >= kMostFailures && std::chrono::steady_clock::now() - pool.failed < kRest;
    if (pool.making || pool.have >= pool.wanted || rests || !parts_.layers.enforces()) continue;
    auto failed = [this, name = name](const Error& error) {
      if (auto it = pools_.find(name); it != pools_.end())
        ++it->second.failures, it->second.failed = std::chrono::steady_clock::now();
      log::warn("launcher", "cannot park a jail: {}", error.message);
    };
    auto request = request_to_park(pool.name, pool.kind);
    if (!request) {
      failed(request.error());
      continue;
    }
    begin(std::move(*request), {}, 0, true, [failed](const auto& result) {
      if (!result) failed(result.error());
    });
    return;
  }
}

void Cells::empty_pool(const std::string& name) {
  for (auto& [key, pool] : pools_)
    if (pool.name == name) pool.wanted = 0, refill_soon();
}

// The guest of a restored one makes its new link before anybody waits for it.
void Cells::link_ahead(One& one) {
  begin_link(one, 0, [this, id = one.entry.id](Result<boundary::Link> link) {
    One* it = find(id);
    if (!it || !it->entry.parked) return;  // it is ending
    if (link) {
      it->link = std::move(*link);
      return enter_pool(*it);
    }
    it->failure = link.error();
    end(*it, EndReason::boundary_failure);
  });
}

void Cells::enter_pool(One& one) {
  auto& pool = pools_[pool_of(one.entry)];
  pool.making = one.being_parked = false;
  parked_.insert({pool_of(one.entry), one.entry.id});
  // Its processes are somebody's, and nobody pays for them yet: they stand still until it is claimed.
  if (one.restored) begin_freezing(one, [](const Result<void>&) {});
  refill_soon();
  if (on_change) on_change();
}

// It is no longer one of the parked: claimed, or ending.
void Cells::leave_pool(One& one) {
  if (!one.entry.parked) return;
  one.entry.parked = false;
  parked_.erase({pool_of(one.entry), one.entry.id});
  auto& pool = pools_[pool_of(one.entry)];
  --pool.have;
  if (std::exchange(one.being_parked, false)) pool.making = false;
}

void Cells::kill_parked() {
  for (auto& [name, pool] : pools_) pool.wanted = 0;
  for (auto& [id, one] : cells_)
    if (one->entry.parked) end(*one, EndReason::killed);
}

}  // namespace isola::launcher
