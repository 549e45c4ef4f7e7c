#include "boundary/jail/jail.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "boundary/jail/cell.h"
#include "boundary/jail/furnish.h"
#include "boundary/jail/root.h"
#include "boundary/jail/syscall_policy.h"
#include "kernel/fault.h"

namespace isola::boundary::jail {

namespace {

// For the moment of clone: the new user namespace is charged to the sandbox's own root, so that limits that the kernel
// counts per user (inotify instances, namespaces) are not shared by all sandboxes.
class BorrowedUser {
 public:
  explicit BorrowedUser(uint32_t id) {
    if (::setresgid(-1, id, -1) < 0 || ::setresuid(-1, id, -1) < 0) failed_ = errno;
  }
  ~BorrowedUser() {
    // Never go on as somebody else.
    if (::setresuid(-1, 0, -1) < 0 || ::setresgid(-1, 0, -1) < 0) std::abort();
  }
  BorrowedUser(const BorrowedUser&) = delete;
  BorrowedUser& operator=(const BorrowedUser&) = delete;
  int failed() const { return failed_; }

 private:
  int failed_ = 0;
};

// In the child: an own table, without everything that the launcher keeps; then tells the launcher so, if it waits.
bool leave_with_low_descriptors(int apart) {
  if (kernel::fault::at("unshare_files")) return false;
  if (::syscall(SYS_close_range, kKeptFrom, ~0u, CLOSE_RANGE_UNSHARE) < 0) return false;
  uint64_t one = 1;
  return apart < 0 || ::write(apart, &one, sizeof one) == static_cast<ssize_t>(sizeof one);
}

// Does the launcher keep so many descriptors that it is better to wait for a child than to give it a copy of them all?
// Numbers are given out from below, so the next one tells. As many as that are some 500 sandboxes', and cost the child
// a tenth of a millisecond; a launcher that waits keeps all others waiting.
bool keeps_many(int any) {
  constexpr int kMany = 4096;
  Fd next(::fcntl(any, F_DUPFD_CLOEXEC, kKeptFrom));
  return !next || next.get() >= kKeptFrom + kMany;
}

// From clone to the child's own table, which the launcher waits for: well below a millisecond, on a busy machine some.
constexpr int kBirthLimitMs = 10'000;

// "pipe:[123]", as /proc/<pid>/fd has it.
Result<std::string> descriptor_name(const char* kind, int fd) {
  struct stat st{};
  if (::fstat(fd, &st) < 0) return sys_error("cannot look at a descriptor");
  return fmt::format("{}:[{}]", kind, st.st_ino);
}

kernel::CgroupLimits group_limits(const Limits& limits) {
  return {.cpus = limits.cpus,
          .memory = limits.memory,
          .pids = limits.pids,
          .io_bytes_per_second = limits.io_bytes_per_second};
}

constexpr auto kHandsPatience = std::chrono::seconds(10);  // a launch takes milliseconds

class JailLaunching : public Launching {
 public:
  JailLaunching(LaunchSpec spec, Protections protections, const kernel::CgroupTree& cgroups,
                std::shared_ptr<NetworkHand> hand)
      : spec_(std::move(spec)),
        protections_(std::move(protections)),
        cgroups_(cgroups),
        hand_(std::move(hand)),
        watch_(latency_) {}
  ~JailLaunching() override {
    if (!child_.pidfd) return;
    hand_->forget(child_.pidfd.get());
    if (furnished_ && !network_ && std::chrono::steady_clock::now() - begun_ > kHandsPatience) hand_->give_up();
    // Not handed over: nothing of it may stay.
    (void)kernel::send_signal(child_.pidfd.get(), SIGKILL);
    while (::waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  int fd() const override { return control_.get(); }
  pid_t pid() const override { return child_.pid; }
  const Latency& latency() const override { return latency_; }
  std::vector<Fd> take_leftovers() override { return std::move(leftovers_); }

  Result<void> start(const kernel::SeccompProgram& filter);
  Error cause_of(const Error& error) const;
  Result<std::unique_ptr<Cell>> advance() override;

 private:
  Result<void> clone(const kernel::SeccompProgram& filter);
  Result<Fd> assume_identity();
  Result<void> expect_apart(int apart);
  Result<void> hear(kernel::Message message);
  kernel::Cgroup group() const { return cgroups_.known(spec_.cgroup, protections_.limits.wants_io()); }
  Result<void> verify_all();
  Result<std::vector<std::string>> expected_descriptors() const;
  Result<std::unique_ptr<Cell>> hand_over();

  LaunchSpec spec_;
  Protections protections_;
  const kernel::CgroupTree& cgroups_;
  std::shared_ptr<NetworkHand> hand_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  Latency latency_;
  Stopwatch watch_;
  kernel::Child child_;
  Fd control_;
  std::string its_control_;  // the child's end, as /proc names it
  Link link_;
  std::optional<HandMade> network_;  // none: not yet
  std::vector<Fd> leftovers_;
  bool furnished_ = false, told_to_exec_ = false;
};

Result<void> JailLaunching::clone(const kernel::SeccompProgram& filter) {
  auto group = this->group();
  auto doors = group.doors();
  group.release();
  if (!doors) return std::unexpected(doors.error());
  ISOLA_TRY(auto conversation, kernel::socket_pair());
  ISOLA_TRY(auto in, kernel::make_pipe());
  ISOLA_TRY(auto out, kernel::make_pipe());
  Furnishing furnishing{.id = spec_.id,
                        .protections = &protections_,
                        .filter = &filter,
                        .cgroup = &*doors,
                        .control = conversation.second.get(),
                        .hand = hand_->socket(),
                        .link = {in.first.get(), out.second.get(), in.second.get(), out.first.get()}};
  std::vector<int> needed = {conversation.first.get(), conversation.second.get(), in.first.get(), in.second.get(),
                             out.first.get(),          out.second.get(),          hand_->socket()};
  for (const auto& door : doors->files) needed.push_back(door.get());
  // The kernel copies the whole table of descriptors for a new process, which then closes it again: with thousands of
  // sandboxes alive that alone would double the price of the next. Then the child shares the table for a moment. Either
  // way it leaves with its low numbers only; whatever the launcher keeps for long lies above them.
  const bool low = std::ranges::all_of(needed, [](int fd) { return fd < kKeptFrom - 1; });
  Fd apart;
  if (low && keeps_many(conversation.first.get())) apart = Fd(::eventfd(0, EFD_CLOEXEC));
  if (apart.get() >= kKeptFrom) apart.reset();
  const bool shared = static_cast<bool>(apart);
  {
    BorrowedUser user(spec_.id_base);
    if (user.failed()) return sys_error("cannot take the sandbox's id", user.failed());
    // The user namespace comes first in the kernel's order too: every other one belongs to it.
    auto child = kernel::spawn(
        CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | (shared ? CLONE_FILES : 0),
        [&] {
          if (low && !leave_with_low_descriptors(apart.get())) return 1;
          // Else the child would hold the launcher's end itself, and never hear that it died.
          conversation.first.reset();
          return become_guest(furnishing);
        },
        doors->folder.get());
    if (!child) return std::unexpected(child.error().in("the namespaces of the sandbox"));
    child_ = std::move(*child);
    hand_->expect(child_.pidfd.get());
  }
  if (shared) ISOLA_CHECK(expect_apart(apart.get()));
  ISOLA_TRY(its_control_, descriptor_name("socket", conversation.second.get()));
  control_ = std::move(conversation.first);
  link_ = Link{std::move(in.second), std::move(out.first)};
  return {};
}

// Until then nothing may be closed here: the child has no other copy.
Result<void> JailLaunching::expect_apart(int apart) {
  pollfd words[2] = {{apart, POLLIN, 0}, {child_.pidfd.get(), POLLIN, 0}};
  int ready;
  do ready = ::poll(words, 2, kBirthLimitMs);
  while (ready < 0 && errno == EINTR);
  if (words[0].revents & POLLIN) return {};
  if (ready == 0) return fail(Code::timeout, "the sandbox's first process did not come to life in time");
  return fail(Code::internal, "the sandbox's first process died at birth");
}

Result<Fd> JailLaunching::assume_identity() {
  // Whatever protects the launcher from the out-of-memory killer must not protect a sandbox.
  ISOLA_CHECK(write_file(fmt::format("/proc/{}/oom_score_adj", child_.pid), "0"));
  ISOLA_CHECK(kernel::write_id_maps(child_.pid, protections_.id_base, protections_.id_count));
  return kernel::open_namespace(child_.pid, "user");
}

Result<void> JailLaunching::start(const kernel::SeccompProgram& filter) {
  ISOLA_CHECK(clone(filter));
  watch_.lap(Step::clone);
  ISOLA_TRY(Fd userns, assume_identity());
  watch_.lap(Step::identity);
  ISOLA_TRY(Root root,
            make_root(spec_.lowers, spec_.layer, userns.get(), spec_.id_base, protections_.mounts[0].attributes));
  leftovers_ = std::move(root.layers);
  std::vector<int> fds = {root.mount.get()};
  for (const auto& shown : spec_.shown) {
    ISOLA_CHECK(prepare_shown(shown, userns.get()));
    fds.push_back(shown.tree.get());
  }
  ISOLA_CHECK(kernel::send_message(control_.get(), std::string_view(&kFurnish, 1), fds));
  watch_.lap(Step::root);
  return {};
}

// The words of the child and of the hand, in any order.
Result<void> JailLaunching::hear(kernel::Message message) {
  const char word = message.bytes[0];
  if (word == kFailed) return std::unexpected(decode_error(message.bytes));
  if (word == kNetworked && !network_) {
    hand_->forget(child_.pidfd.get());
    ISOLA_TRY(network_, decode_network(std::move(message)));
    watch_.lap(Step::network);
    return {};
  }
  if (word != kFurnished || furnished_) return fail(Code::internal, "unexpected word from an unborn jail");
  furnished_ = true;
  watch_.lap(Step::furnish);
  return {};
}

Result<std::unique_ptr<Cell>> JailLaunching::advance() {
  auto message = kernel::receive_message(control_.get());
  // One that died before it had read all is "reset".
  if (message ? message->bytes.empty() : message.error().sys_errno == ECONNRESET) {
    if (message && told_to_exec_) return hand_over();
    if (!network_ && !hand_->alive()) return fail(Code::unavailable, "the helper that makes networks died");
    return fail(Code::internal, "the sandbox's first process died while it was furnished");
  }
  if (!message) return std::unexpected(message.error());
  ISOLA_CHECK(hear(std::move(*message)));
  if (!furnished_ || !network_) return nullptr;
  ISOLA_CHECK(verify_all());
  watch_.lap(Step::verify);
  ISOLA_CHECK(kernel::send_message(control_.get(), std::string_view(&kExec, 1)));
  told_to_exec_ = true;
  return nullptr;
}

// A child that fails while we work on its namespaces takes them with it: what it has to say is the cause.
Error JailLaunching::cause_of(const Error& error) const {
  pollfd ready{control_.get(), POLLIN, 0};
  if (!control_ || ::poll(&ready, 1, 0) <= 0) return error;
  auto message = kernel::receive_message(control_.get());
  return message && !message->bytes.empty() && message->bytes[0] == kFailed ? decode_error(message->bytes) : error;
}

// 0–2 nothing, 3–6 both ends of both pipes, 7 our conversation, which the exec closes.
Result<std::vector<std::string>> JailLaunching::expected_descriptors() const {
  const std::string null = "/dev/null";
  ISOLA_TRY(std::string in, descriptor_name("pipe", link_.to_guest.get()));
  ISOLA_TRY(std::string out, descriptor_name("pipe", link_.from_guest.get()));
  return std::vector<std::string>{null, null, null, in, out, in, out, its_control_};
}

// Nothing of the guest has run yet: it is born only if what is installed is what the protections say.
Result<void> JailLaunching::verify_all() {
  auto group = this->group();
  auto limited = group.set_cpus(spec_.limits.cpus);
  auto limits = limited ? group.limits() : std::unexpected(limited.error());
  group.release();
  if (!limits) return std::unexpected(limits.error());
  // The hand describes the namespace that it was given: it must be the one that process 1 is in.
  struct stat netns{};
  if (::stat(fmt::format("/proc/{}/ns/net", child_.pid).c_str(), &netns) < 0)
    return sys_error("cannot look at the sandbox's network namespace");
  if (netns.st_ino != network_->netns) return fail(Code::internal, "protection mismatch: another network was made");
  ISOLA_CHECK(verify_around(protections_, *limits, network_->description));
  ISOLA_TRY(auto descriptors, expected_descriptors());
  ISOLA_CHECK(verify_descriptors(child_.pid, descriptors));
  return verify(child_.pid, protections_);
}

Result<std::unique_ptr<Cell>> JailLaunching::hand_over() {
  watch_.lap(Step::exec);
  ISOLA_TRY(uint64_t started, kernel::start_time(child_.pid));
  auto cell = std::make_unique<JailCell>(kernel::ProcessName{child_.pid, started}, std::move(child_.pidfd), true);
  cell->set_first_link(std::move(link_));
  cell->set_network(std::move(network_->sockets));
  return cell;
}

}  // namespace

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
  if (spec.shown.size() > kMostShown)
    return fail(Code::invalid, fmt::format("at most {} folders can be shown to a sandbox", kMostShown));
  for (const auto& shown : spec.shown) {
    if (shown.target.size() < 2 || shown.target[0] != '/')
      return fail(Code::invalid, "a shown folder needs an absolute path");
    // What stands there protects the sandbox; nothing is laid over it.
    for (std::string_view own : {"/proc", "/sys", "/dev"})
      if (shown.target == own || shown.target.starts_with(std::string(own) + "/"))
        return fail(Code::invalid,
                    "nothing can be shown at " + shown.target + ": " + std::string(own) + " is the sandbox's own");
    wanted.mounts.push_back({.target = shown.target.substr(1),
                             .from = MountRule::From::shown,
                             .attributes = {.read_only = shown.read_only, .nosuid = true, .nodev = true}});
  }
  if (spec.memory) return begin_restore({criu_, std::move(spec), std::move(wanted), cgroups_, network_});
  ISOLA_CHECK(start_hand());
  auto launching = std::make_unique<JailLaunching>(std::move(spec), std::move(wanted), cgroups_, hand_);
  auto started = launching->start(filter_);
  if (!started) return std::unexpected(launching->cause_of(started.error()));
  return launching;
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
  ISOLA_TRY(auto mounts, mounts_of(cell.process().pid));
  return begin_checkpoint(criu_, mounts, cell.process().pid, std::move(spec));
}

Result<void> Jail::verify_limits(const Limits& wanted, const kernel::CgroupLimits& installed) const {
  Protections now = protections_;
  now.limits = group_limits(wanted);
  return verify_around(now, installed, now.network);
}

Result<std::unique_ptr<Cell>> Jail::adopt(const kernel::ProcessName& process) {
  ISOLA_TRY(Fd pidfd, kernel::open_pidfd(process));
  auto cell = std::make_unique<JailCell>(process, std::move(pidfd), false);
  cell->set_network(&network_);
  return cell;
}

}  // namespace isola::boundary::jail
