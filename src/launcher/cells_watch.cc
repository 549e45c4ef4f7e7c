// On version 1 of control groups what lies in sockets is no part of the memory limit. It has one of its own, which
// makes buffers small but refuses nothing: each connection keeps what it has begun, and with thousands of them that is
// many times the limit. So it is looked at here, and a sandbox that holds more than its memory in them ends as if it
// had run out of it. All sandboxes together are one number; only when that is large each one is asked.
//
// Locks on files no version counts, nor do they have a limit of their own. They are seen to in the same way: the kernel
// says in one number how many there are, and only when that is large somebody is sent to look whose they are.
#include <linux/capability.h>

#include <utility>

#include "base/log.h"
#include "kernel/capability.h"
#include "launcher/cells.h"
#include "launcher/file_locks.h"

namespace isola::launcher {

namespace {
constexpr auto kAgain = std::chrono::milliseconds(250);
constexpr auto kSlowly = std::chrono::seconds(5);
constexpr uint64_t kMuch = 32 << 20;
// Descriptors of other users' processes are listed for nobody else.
constexpr uint64_t kLookAtLocks = kernel::capability(CAP_SYS_PTRACE) | kernel::capability(CAP_DAC_READ_SEARCH);
}  // namespace

// Where nothing lives there is nothing to look at, and this process sleeps.
void Cells::watch_living() {
  if (parts_.cgroups.version() == kernel::CgroupVersion::v1 && !std::exchange(sockets_watched_, true)) watch_sockets();
  if (!std::exchange(locks_watched_, true)) watch_locks(std::chrono::milliseconds(0));
}

void Cells::watch_sockets() {
  parts_.loop.after(kAgain, [this] {
    if (live_ == 0) {
      sockets_watched_ = false;
      return;
    }
    if (auto all = parts_.cgroups.socket_memory(); all && *all > kMuch) end_hoarders();
    watch_sockets();
  });
}

void Cells::end_hoarders() {
  for (auto& [id, one] : cells_) {
    if (one->state != State::running || one->limits.memory == 0) continue;
    auto group = parts_.cgroups.known(id, false);
    auto held = group.socket_memory();
    group.release();
    if (!held || *held <= one->limits.memory) continue;
    log::warn("launcher", "{} holds {} MiB in sockets, more than its memory: it is ended", id, *held >> 20);
    end(*one, EndReason::oom);
  }
}

// Where the kernel does not say how many there are, all of them are read, less often.
void Cells::watch_locks(std::chrono::milliseconds pause) {
  parts_.loop.after(pause, [this] {
    if (live_ == 0) {
      locks_watched_ = false;
      return;
    }
    const auto objects = lock_objects();
    if (objects) calm_locks_ = std::min(calm_locks_, *objects);
    if (objects && *objects <= std::max(kManyLocks, calm_locks_ + kManyLocks / 4))
      return watch_locks(objects ? kAgain : kSlowly);
    find_locks(objects);
  });
}

void Cells::find_locks(std::optional<uint64_t> objects) {
  std::vector<LockHolder> holders;
  for (const auto& [id, one] : cells_)
    if ((one->state == State::running || one->state == State::frozen) && one->cell)
      holders.push_back({id, one->cell->name().process.pid});
  auto look = [groups = parts_.cgroups, holders = std::move(holders)](kernel::Helper::Talk&) -> Result<std::string> {
    ISOLA_TRY(auto found, find_lock_hoarder(holders, groups, kLockShare));
    return found.id;
  };
  const auto begun = std::chrono::steady_clock::now();
  ask_aside({.name = "isola-locks", .capabilities = kLookAtLocks}, look, [=, this](const Result<std::string>& found) {
    if (!found) {
      log::error("launcher", "cannot look whose locks on files there are: {}", found.error().message);
    } else if (!found->empty()) {
      if (auto* one = find_living(*found)) {
        log::warn("launcher", "{} holds more than {} locks on files: it is ended", *found, kLockShare);
        end(*one, EndReason::oom);
      }
    } else if (objects) {
      calm_locks_ = *objects;  // other objects, or other people's: looked at again when there are more
    }
    // A look takes the longer the more there is: it is not all that happens here.
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begun);
    watch_locks(std::max<std::chrono::milliseconds>(objects ? kAgain : kSlowly, 2 * took));
  });
}

}  // namespace isola::launcher
