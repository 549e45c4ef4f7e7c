// Cgroup: stopping, killing and removing what is inside.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>

#include "base/fd.h"
#include "kernel/cgroup.h"
#include "kernel/cgroup_file.h"

namespace isola::kernel {

using namespace cgroup_file;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

namespace {

constexpr size_t kBatch = 512;  // pidfds held at once while killing
constexpr milliseconds kRemoveLimit{2000};

// For the states that the kernel changes without telling anybody (v1's freezer, a group that is busy for the moment
// that its last process needs to leave it): a few yields, then waits that grow from 50 us to 4 ms, up to a deadline.
class Backoff {
 public:
  explicit Backoff(milliseconds limit) : deadline_(Clock::now() + limit) {}
  // false: time is up.
  bool wait() {
    if (Clock::now() >= deadline_) return false;
    if (round_ < 4) {
      ::sched_yield();
    } else {
      timespec pause{0, std::min(50'000L << std::min(round_ - 4, 7), 4'000'000L)};
      ::ppoll(nullptr, 0, &pause, nullptr);
    }
    ++round_;
    return true;
  }

 private:
  Clock::time_point deadline_;
  int round_ = 0;
};

int left(Clock::time_point deadline) {
  auto rest = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<decltype(rest)>(rest, 0));
}

}  // namespace

Result<std::vector<pid_t>> Cgroup::processes() const {
  const auto& folder = layout_->freezer.empty() ? layout_->pids : layout_->freezer;
  ISOLA_TRY(std::string text, read_file(path(folder, "cgroup.procs")));
  std::vector<pid_t> out;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    pid_t pid = 0;
    auto [next, error] = std::from_chars(at, end, pid);
    if (error != std::errc()) return fail(Code::corrupt, "cannot read the processes of cgroup " + name_);
    out.push_back(pid);
    at = next + 1;
  }
  return out;
}

Result<void> Cgroup::begin_freeze() const {
  const auto& l = *layout_;
  if (l.freezer.empty()) return fail(Code::unsupported, "this machine has no freezer controller");
  return l.version == CgroupVersion::v2 ? write(path(l.freezer, "cgroup.freeze"), "1")
                                        : write(path(l.freezer, "freezer.state"), "FROZEN");
}

Result<bool> Cgroup::frozen() const {
  const auto& l = *layout_;
  if (int e = fault::at("cgroup_frozen")) return e == EAGAIN ? Result<bool>(false) : sys_error("cannot freeze", e);
  if (l.version == CgroupVersion::v2) {
    ISOLA_TRY(std::string events, read_file(path(l.freezer, "cgroup.events")));
    return keyed(events, "frozen") == 1;
  }
  // v1 looks whether it is done only when its state is read. Writing again each time catches a process that slipped
  // through between two states.
  auto state = path(l.freezer, "freezer.state");
  ISOLA_CHECK(write(state, "FROZEN"));
  ISOLA_TRY(std::string now, read_file(state));
  return now.starts_with("FROZEN");
}

Result<Fd> Cgroup::freeze_events() const {
  const auto& l = *layout_;
  if (l.version != CgroupVersion::v2) return Fd();
  auto events = path(l.freezer, "cgroup.events");
  Fd fd(::open(events.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + events);
  // kernfs reports changes since the last read of this very descriptor.
  char text[256];
  if (::read(fd.get(), text, sizeof text) < 0) return sys_error("cannot read " + events);
  return fd;
}

Result<void> Cgroup::freeze(milliseconds limit) const {
  ISOLA_TRY(Fd events, freeze_events());
  ISOLA_CHECK(begin_freeze());
  Backoff backoff(limit);
  for (auto deadline = Clock::now() + limit;;) {
    ISOLA_TRY(bool done, frozen());
    if (done) return {};
    if (events && Clock::now() < deadline) {
      pollfd p{events.get(), POLLPRI, 0};
      if (::poll(&p, 1, left(deadline)) < 0 && errno != EINTR) return sys_error("cannot wait for a cgroup");
      char text[256];
      (void)!::pread(events.get(), text, sizeof text, 0);
      continue;
    }
    if (events || !backoff.wait()) break;
  }
  (void)thaw();
  return fail(Code::timeout, "the processes of " + name_ + " could not be stopped in time");
}

Result<void> Cgroup::thaw() const {
  const auto& l = *layout_;
  if (l.freezer.empty()) return fail(Code::unsupported, "this machine has no freezer controller");
  if (l.version == CgroupVersion::v2) return write(path(l.freezer, "cgroup.freeze"), "0");
  return write(path(l.freezer, "freezer.state"), "THAWED");
}

// A number from the list may belong to somebody else by the time it is used. So: hold the process first, then look
// whether that number is still in the group. `inside` is what there is then.
Result<std::vector<std::pair<pid_t, Fd>>> Cgroup::hold(std::vector<pid_t>& inside) const {
  std::vector<std::pair<pid_t, Fd>> held;
  for (pid_t pid : inside) {
    if (held.size() == kBatch) break;
    Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!fd && errno == ESRCH) continue;
    if (!fd)
      return sys_error("cannot hold a process of " + name_);  // no descriptors: it lives, and must not be passed by
    held.emplace_back(pid, std::move(fd));
  }
  ISOLA_TRY(inside, processes());
  std::erase_if(held, [&](const auto& h) { return std::ranges::find(inside, h.first) == inside.end(); });
  return held;
}

Result<void> Cgroup::kill_frozen() const {
  ISOLA_TRY(auto all, processes());
  // Nobody forks and, on v1, nobody leaves meanwhile: once through the list is all of them.
  for (size_t at = 0; at < all.size(); at += kBatch) {
    std::vector<pid_t> some(all.begin() + static_cast<ptrdiff_t>(at),
                            all.begin() + static_cast<ptrdiff_t>(std::min(at + kBatch, all.size())));
    ISOLA_TRY(auto held, hold(some));
    for (const auto& [pid, fd] : held) ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
  }
  return thaw();
}

Result<void> Cgroup::kill_all(milliseconds limit) const {
  const auto& l = *layout_;
  auto inside = processes();
  if (!inside && inside.error().sys_errno == ENOENT) return {};  // no group, nobody inside
  ISOLA_CHECK(inside);
  if (inside->empty()) return {};

  // Nobody inside may fork from here on: else a fork bomb would stay ahead of us.
  auto most = path(l.pids, "pids.max");
  ISOLA_TRY(std::string old_most, read_file(most));
  ISOLA_CHECK(write(most, "0"));
  auto deadline = Clock::now() + limit;
  Backoff backoff(limit);
  while (!inside->empty()) {
    ISOLA_TRY(auto held, hold(*inside));
    for (const auto& [pid, fd] : held) ::syscall(SYS_pidfd_send_signal, fd.get(), SIGKILL, nullptr, 0);
    // A frozen process of v1 dies only when it may move again.
    if (l.version == CgroupVersion::v1 && !l.freezer.empty()) ISOLA_CHECK(thaw());
    for (const auto& [pid, fd] : held) {
      pollfd p{fd.get(), POLLIN, 0};
      int n;
      do n = ::poll(&p, 1, left(deadline));
      while (n < 0 && errno == EINTR);
      if (n == 0) return fail(Code::timeout, "process " + std::to_string(pid) + " of " + name_ + " does not die");
    }
    ISOLA_TRY(*inside, processes());
    if (held.empty() && !inside->empty() && !backoff.wait())
      return fail(Code::timeout, "the processes of " + name_ + " do not die");
  }
  return write(most, old_most);
}

Result<void> Cgroup::destroy() {
  if (!layout_) return {};
  const auto& l = *layout_;
  bool v2 = l.version == CgroupVersion::v2;
  // Pages that files of the sandbox left in the cache stay charged to its group and keep a removed group alive in the
  // kernel (hundreds of KiB each): give them back first. Best effort: a page that cannot go now is no reason to keep
  // the group.
  if (auto used = read_number(path(l.memory, v2 ? "memory.current" : "memory.usage_in_bytes")); used && *used > 0)
    (void)write_file(path(l.memory, v2 ? "memory.reclaim" : "memory.force_empty"), v2 ? std::to_string(*used) : "0");
  auto folders = l.folders();
  if (io_ && !l.io.empty() && std::ranges::find(folders, l.io) == folders.end()) folders.push_back(l.io);
  Backoff backoff(kRemoveLimit);
  for (const auto& folder : folders) {
    auto path = folder + "/" + name_;
    while (::rmdir(path.c_str()) < 0 && errno != ENOENT) {
      if (errno != EBUSY) return sys_error("cannot remove the cgroup " + path);
      // A process that died a moment ago may not have left yet; one that lives will not leave.
      auto inside = processes();
      if ((inside && !inside->empty()) || !backoff.wait()) return sys_error("cannot remove the cgroup " + path, EBUSY);
    }
  }
  layout_.reset();
  return {};
}

}  // namespace isola::kernel
