// On version 1 of control groups what lies in sockets is no part of the memory limit. It has one of its own, which
// makes buffers small but refuses nothing: each connection keeps what it has begun, and with thousands of them that is
// many times the limit. So it is looked at here, and a sandbox that holds more than its memory in them ends as if it
// had run out of it. All sandboxes together are one number; only when that is large each one is asked.
#include "base/log.h"
#include "launcher/cells.h"

namespace isola::launcher {

namespace {
constexpr auto kAgain = std::chrono::milliseconds(250);
constexpr uint64_t kMuch = 32 << 20;
}  // namespace

void Cells::watch_sockets() {
  if (parts_.cgroups.version() == kernel::CgroupVersion::v2) return;
  parts_.loop.after(kAgain, [this] {
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

}  // namespace isola::launcher
