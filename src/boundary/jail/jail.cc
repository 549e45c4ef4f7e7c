#include "boundary/jail/jail.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "boundary/jail/cell.h"
#include "boundary/jail/furnish.h"
#include "boundary/jail/syscall_policy.h"

namespace isola::boundary::jail {

Jail::Jail(kernel::CgroupTree cgroups, kernel::SeccompProgram filter, IslandNetwork network, Criu criu)
    : cgroups_(std::move(cgroups)), filter_(std::move(filter)), network_(std::move(network)), criu_(std::move(criu)) {
  protections_.id_count = kIdCount;
  protections_.open_files = Limits{}.open_files;
  protections_.capabilities = kCapabilities;
  protections_.filter_hash = filter_.hash();
  protections_.mounts = standard_mounts();
}

Result<std::unique_ptr<Jail>> Jail::make(kernel::CgroupTree cgroups) {
  ISOLA_TRY(auto filter, jail_syscall_program());
  ISOLA_TRY(auto network, IslandNetwork::prepare());
  std::unique_ptr<Jail> jail(new Jail(std::move(cgroups), std::move(filter), std::move(network), Criu::find()));
  ISOLA_TRY(jail->protections_.network, jail->network_.expected());
  return jail;
}

Result<std::unique_ptr<Launching>> Jail::begin(LaunchSpec spec) {
  Protections wanted = protections_;
  wanted.id_base = spec.id_base;
  wanted.cgroup = spec.cgroup;
  wanted.limits = group_limits(spec.limits);
  wanted.open_files = spec.limits.open_files;
  ISOLA_CHECK(check_shown(spec.shown));
  for (const auto& shown : spec.shown) {
    wanted.mounts.push_back({.target = shown.target.substr(1),
                             .from = MountRule::From::shown,
                             .attributes = {.read_only = shown.read_only, .nosuid = true, .nodev = true}});
  }
  if (spec.memory) return begin_restore({criu_, std::move(spec), std::move(wanted), cgroups_, network_});
  ISOLA_CHECK(start_hand());
  return begin_launch({.spec = std::move(spec),
                       .wanted = std::move(wanted),
                       .cgroups = cgroups_,
                       .hand = hand_,
                       .filter = &filter_,
                       .outfit = {}});
}

Result<std::unique_ptr<Launching>> Jail::begin_box(LaunchSpec spec, Protections wanted, Outfit outfit,
                                                   const kernel::SeccompProgram* filter) {
  ISOLA_CHECK(start_hand());
  wanted.id_base = spec.id_base;
  wanted.id_count = kIdCount;
  wanted.cgroup = spec.cgroup;
  wanted.limits = group_limits(spec.limits);
  return begin_launch({.spec = std::move(spec),
                       .wanted = std::move(wanted),
                       .cgroups = cgroups_,
                       .hand = hand_,
                       .filter = filter,
                       .outfit = std::move(outfit)});
}

Result<void> Jail::start_hand() {
  look_after_hand();
  if (hand_) return {};
  if (!hand_ready_) {
    hand_ready_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!hand_ready_) return sys_error("cannot watch a helper");
  }
  ISOLA_TRY(auto hand, NetworkHand::start());
  epoll_event event{.events = EPOLLIN, .data = {}};
  if (::epoll_ctl(hand_ready_.get(), EPOLL_CTL_ADD, hand->death_fd(), &event) < 0)
    return sys_error("cannot watch a helper");
  hand_ = std::move(hand);
  return {};
}

void Jail::look_after_hand() {
  if (!hand_ || hand_->alive()) return;
  log::error("boundary", "the helper that makes networks died");
  (void)::epoll_ctl(hand_ready_.get(), EPOLL_CTL_DEL, hand_->death_fd(), nullptr);
  hand_->end();
  hand_.reset();
}

Engine Jail::engine() const {
  utsname machine{};
  return {.name = "linux", .version = ::uname(&machine) == 0 ? machine.release : "", .accelerated = false};
}

Result<MemoryHost> Jail::memory_host() {
  if (!host_) {
    ISOLA_TRY(host_, jail::memory_host(criu_));
  }
  return *host_;
}

// What every jail has, and the folders that are shown to this one: nothing else can be mounted in it.
Result<std::vector<MountRule>> Jail::mounts_of(pid_t pid) const {
  auto rules = protections_.mounts;
  ISOLA_TRY(std::string table, read_file(fmt::format("/proc/{}/mountinfo", pid)));
  ISOLA_TRY(auto lines, mount_lines(table));
  for (const auto& line : lines) {
    std::string target = line.substr(1, line.find(' ') - 1);
    if (std::ranges::none_of(rules, [&](const MountRule& rule) { return rule.target == target; }))
      rules.push_back({.target = target, .from = MountRule::From::shown});
  }
  return rules;
}

Result<std::unique_ptr<Checkpointing>> Jail::checkpoint(Cell& cell, CheckpointSpec spec) {
  if (spec.memory) ISOLA_CHECK(memory_host());
  ISOLA_TRY(auto mounts, mounts_of(cell.name().process.pid));
  return begin_checkpoint(criu_, mounts, cell.name().process.pid, std::move(spec));
}

Result<void> Jail::verify_limits(const Limits& wanted, const kernel::CgroupLimits& installed) const {
  Protections now = protections_;
  now.limits = group_limits(wanted);
  return verify_around(now, installed, now.network);
}

Result<std::unique_ptr<Cell>> Jail::adopt(const CellName& name) {
  ISOLA_TRY(Fd pidfd, kernel::open_pidfd(name.process));
  auto cell = std::make_unique<JailCell>(name.process, std::move(pidfd), false);
  cell->set_network(&network_);
  return cell;
}

}  // namespace isola::boundary::jail
