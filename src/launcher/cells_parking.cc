// Parked jails: made ahead of time, and claimed by a launch whose settings allow it.
#include <ctime>

#include "base/log.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {

// A pause before parked jails are replaced, so that the work of it does not compete with the command that a claimed one
// is just about to run.
constexpr auto kRefillPause = std::chrono::milliseconds(5);
constexpr uint32_t kMaxParked = 256;

}  // namespace

bool Cells::claim(const LaunchRequest& request, OwnerId owner, Launched& done) {
  for (;;) {
    auto it = parked_.lower_bound({request.digest, ""});
    if (it == parked_.end() || it->first != request.digest) return false;
    One* one = find(it->second);
    // Fixed when it was parked: such a caller gets a cold one, and the parked one waits for another caller.
    if (one->limits.open_files != request.limits.open_files) return false;
    leave_pool(*one);
    refill_soon();
    if (auto claimed = claim(*one, request); !claimed) {
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
}

Result<void> Cells::claim(One& one, const LaunchRequest& request) {
  one.latency = Latency{};  // what was done before the caller came is not the caller's time
  Stopwatch watch(one.latency);
  if (group_limits(one.limits) != group_limits(request.limits)) {
    ISOLA_TRY(auto group, parts_.cgroups.adopt(one.entry.id));
    auto set = group.set(group_limits(request.limits));
    auto installed = group.limits();
    group.release();
    ISOLA_CHECK(std::move(set));
    // A claim is a birth: what is installed is compared before the guest may run anything for its new owner.
    if (!installed) return std::unexpected(installed.error());
    ISOLA_CHECK(parts_.boundary.verify_limits(request.limits, *installed));
  }
  if (one.limits.disk != request.limits.disk) {
    ISOLA_CHECK(parts_.layers.resize(layer_of(one.entry), {.bytes = request.limits.disk}));
    ISOLA_CHECK(image::verify_limit(parts_.layers, layer_of(one.entry), request.limits.disk));
  }
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

Result<void> Cells::park(const std::string& digest, uint32_t count) {
  if (count > kMaxParked) return fail(Code::invalid, "at most " + std::to_string(kMaxParked) + " jails can be parked");
  ISOLA_CHECK(check({.digest = digest, .allow_unquotaed = true}));
  ISOLA_CHECK(mount_image(digest));
  pools_[digest].wanted = count;
  pools_[digest].failures = 0;
  refill_soon();
  return {};
}

void Cells::refill_soon() {
  if (refill_) parts_.loop.cancel(*refill_);
  refill_ = parts_.loop.after(kRefillPause, [this] { refill_.reset(), refill(); });
}

// One at a time: a burst of creates is not slowed by a burst of refills behind it.
void Cells::refill() {
  for (auto& [digest, pool] : pools_) {
    while (pool.have > pool.wanted) {
      auto surplus = parked_.lower_bound({digest, ""});
      if (surplus == parked_.end() || surplus->first != digest) break;  // the rest is still being made
      end(*find(surplus->second), EndReason::killed);
    }
  }
  for (auto& [digest, pool] : pools_) {
    if (pool.making || pool.have >= pool.wanted || pool.failures >= 3 || !parts_.layers.enforces()) continue;
    begin({.digest = digest, .ephemeral = false}, {}, 0, true, [&pool = pool](auto result) {
      if (result) return;
      ++pool.failures;
      log::warn("launcher", "cannot park a jail: {}", result.error().message);
    });
    return;
  }
}

// It is no longer one of the parked: claimed, or ending.
void Cells::leave_pool(One& one) {
  if (!one.entry.parked) return;
  one.entry.parked = false;
  parked_.erase({one.entry.digest, one.entry.id});
  auto& pool = pools_[one.entry.digest];
  --pool.have;
  if (one.state == State::creating) pool.making = false;
}

void Cells::kill_parked() {
  for (auto& [digest, pool] : pools_) pool.wanted = 0;
  for (auto& [id, one] : cells_)
    if (one->entry.parked) end(*one, EndReason::killed);
}

}  // namespace isola::launcher
