#include "boundary/jail/launching.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "base/file.h"
#include "boundary/jail/cell.h"
#include "boundary/jail/root.h"
#include "kernel/fault.h"
#include "kernel/helper.h"

namespace isola::boundary::jail {

namespace {

// For the moment of clone: the new user namespace is charged to the sandbox's own root, so that limits that the kernel
// counts per user (inotify instances, namespaces) are not shared by all sandboxes.
class BorrowedUser {
 public:
  explicit BorrowedUser(uint32_t id) {
    failed_ = kernel::fault::at("borrow_user");
    if (failed_ != 0) return;
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

constexpr char kComplaints[] = "isola-engine";

constexpr auto kHandsPatience = std::chrono::seconds(10);  // a launch takes milliseconds

class JailLaunching : public Launching {
 public:
  explicit JailLaunching(LaunchParts parts)
      : spec_(std::move(parts.spec)),
        protections_(std::move(parts.wanted)),
        cgroups_(parts.cgroups),
        hand_(std::move(parts.hand)),
        filter_(parts.filter),
        outfit_(std::move(parts.outfit)),
        watch_(latency_) {}
  ~JailLaunching() override {
    check_.kill();
    if (!child_.pidfd) return;
    hand_->forget(child_.pidfd.get());
    if (furnished_ && !network_ && std::chrono::steady_clock::now() - begun_ > kHandsPatience) hand_->give_up();
    // Not handed over: nothing of it may stay.
    (void)kernel::send_signal(child_.pidfd.get(), SIGKILL);
    while (::waitpid(child_.pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

  int fd() const override { return ready_ ? ready_.get() : control_.get(); }
  CellName name() const override {
    return {.kind = kind(),
            .process = {child_.pid, kernel::start_time(child_.pid).value_or(0)},
            .handle = outfit_ ? outfit_->handle : ""};
  }
  const Latency& latency() const override { return latency_; }
  std::vector<Fd> take_leftovers() override { return std::move(leftovers_); }

  Result<void> start();
  Error cause_of(const Error& error) const;
  Result<std::unique_ptr<Cell>> advance() override;

 private:
  BoundaryKind kind() const { return outfit_ ? outfit_->kind : BoundaryKind::jail; }
  Result<void> clone();
  Result<std::unique_ptr<Cell>> bear();
  Result<void> await_boot();
  Result<std::unique_ptr<Cell>> boot();
  Result<void> wait_for(int fd);
  Result<Fd> assume_identity();
  Result<std::vector<Fd>> make_mounts(int userns);
  Result<void> expect_apart(int apart);
  Result<void> hear(kernel::Message message);
  Result<void> begin_check();
  Result<void> hear_check();
  kernel::Cgroup group() const { return cgroups_.known(spec_.cgroup, protections_.limits.wants_io()); }
  Result<void> verify_all();
  Result<std::vector<std::string>> expected_descriptors() const;
  Result<std::unique_ptr<Cell>> hand_over();

  LaunchSpec spec_;
  Protections protections_;
  const kernel::CgroupTree& cgroups_;
  std::shared_ptr<NetworkHand> hand_;
  const kernel::SeccompProgram* filter_;
  std::optional<Outfit> outfit_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  Latency latency_;
  Stopwatch watch_;
  kernel::Child child_;
  Fd control_;
  Fd ready_;                 // of a box: whatever we wait for
  Fd complaints_;            // of its engine
  std::string its_control_;  // the child's end, as /proc names it
  Link link_;
  std::optional<HandMade> network_;  // none: not yet
  std::vector<Fd> leftovers_;
  kernel::Helper check_;  // of a memory image: are its files whole? And whatever an engine needs to be done
  bool furnished_ = false, told_to_exec_ = false, booting_ = false;
};

Result<void> JailLaunching::clone() {
  auto group = this->group();
  auto doors = group.doors();
  group.release();
  if (!doors) return std::unexpected(doors.error());
  ISOLA_TRY(auto conversation, kernel::socket_pair());
  ISOLA_TRY(auto in, kernel::make_pipe());
  ISOLA_TRY(auto out, kernel::make_pipe());
  Furnishing furnishing{.id = spec_.id,
                        .protections = &protections_,
                        .filter = filter_,
                        .cgroup = &*doors,
                        .control = conversation.second.get(),
                        .hand = hand_->socket(),
                        .link = {in.first.get(), out.second.get(), in.second.get(), out.first.get()},
                        .outfit = outfit_ ? &*outfit_ : nullptr,
                        .complaints = complaints_.get()};
  std::vector<int> needed = {conversation.first.get(), conversation.second.get(), in.first.get(), in.second.get(),
                             out.first.get(),          out.second.get(),          hand_->socket()};
  if (complaints_) needed.push_back(complaints_.get());
  for (const auto& door : doors->files) needed.push_back(door.get());
  // The kernel copies the whole table of descriptors for a new process, which then closes it again: with thousands of
  // sandboxes alive that alone would double the price of the next. Then the child shares the table for a moment. Either
  // way it leaves with its low numbers only; whatever the launcher keeps for long lies above them.
  const bool low = std::ranges::all_of(needed, [](int fd) { return fd < kKeptFrom - 1; });
  Fd apart;
  if (low && keeps_many(conversation.first.get()) && !kernel::fault::at("eventfd"))
    apart = Fd(::eventfd(0, EFD_CLOEXEC));
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

Result<void> JailLaunching::start() {
  if (outfit_) {
    complaints_ = Fd(::memfd_create(kComplaints, MFD_CLOEXEC));
    ready_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    if (!complaints_ || !ready_ || ::fchmod(complaints_.get(), 0600) < 0)
      return sys_error("cannot prepare for an engine");
  }
  ISOLA_CHECK(clone());
  if (ready_) ISOLA_CHECK(wait_for(control_.get()));
  if (spec_.memory || (outfit_ && outfit_->prepare)) ISOLA_CHECK(begin_check());
  watch_.lap(Step::clone);
  ISOLA_TRY(Fd userns, assume_identity());
  watch_.lap(Step::identity);
  ISOLA_TRY(auto mounts, make_mounts(userns.get()));
  std::vector<int> fds;
  for (const auto& mount : mounts) fds.push_back(mount.get());
  if (int e = kernel::fault::at("say_furnish")) return sys_error("cannot tell the unborn jail", e);
  ISOLA_CHECK(kernel::send_message(control_.get(), std::string_view(&kFurnish, 1), fds));
  watch_.lap(Step::root);
  return {};
}

// What the child cannot make itself, in the order of the rules: the root and shown folders, or disks.
Result<std::vector<Fd>> JailLaunching::make_mounts(int userns) {
  std::vector<Fd> mounts;
  const auto& rules = protections_.mounts;
  auto rule = outfit_ ? std::ranges::find(rules, MountRule::From::root, &MountRule::from) : rules.begin();
  if (rule != rules.end()) {
    ISOLA_TRY(Root root, make_root(spec_.lowers, spec_.layer, userns, spec_.id_base, rule->attributes));
    leftovers_ = std::move(root.layers);
    mounts.push_back(std::move(root.mount));
  }
  for (const auto& disk : rules) {
    if (disk.from != MountRule::From::disk) continue;
    auto attributes = disk.attributes;
    attributes.idmap = userns;
    ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, disk.source));
    ISOLA_CHECK(kernel::set_attributes(tree.get(), attributes));
    mounts.push_back(std::move(tree));
  }
  for (const auto& shown : spec_.shown) {
    ISOLA_TRY(Fd mount, prepare_shown(shown, userns));
    mounts.push_back(std::move(mount));
  }
  return mounts;
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

Result<void> JailLaunching::wait_for(int fd) {
  if (int e = kernel::fault::at("epoll_ctl")) return sys_error("cannot wait for an engine", e);
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(ready_.get(), EPOLL_CTL_ADD, fd, &event) < 0) return sys_error("cannot wait for an engine");
  return {};
}

// Whatever an engine restores from begins to run as soon as it is read: so nothing is read before it is known to be
// what was written.
Result<void> JailLaunching::begin_check() {
  const bool whole = spec_.memory && spec_.memory->check, prepare = outfit_ && outfit_->prepare;
  if (!whole && !prepare) return {};
  ISOLA_TRY(check_, kernel::Helper::start({.name = "isola-check"}, [&](kernel::Helper::Talk&) -> Result<std::string> {
              if (prepare) ISOLA_CHECK(outfit_->prepare());
              if (whole) ISOLA_CHECK(spec_.memory->check());
              return "";
            }));
  return wait_for(check_.fd());
}

Result<void> JailLaunching::hear_check() {
  pollfd word{check_.fd(), POLLIN, 0};
  if (!check_.valid() || ::poll(&word, 1, 0) <= 0) return {};
  (void)::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, check_.fd(), nullptr);
  auto said = check_.next();
  check_ = {};  // whoever reaps strays waits for it
  if (!said) return std::unexpected(said.error());
  watch_.lap(Step::restore);
  return {};
}

// The relay runs, and has started the engine: the next word is the guest's.
Result<void> JailLaunching::await_boot() {
  watch_.lap(Step::exec);
  booting_ = true;
  (void)::epoll_ctl(ready_.get(), EPOLL_CTL_DEL, control_.get(), nullptr);
  ISOLA_CHECK(wait_for(link_.from_guest.get()));
  return wait_for(child_.pidfd.get());
}

Result<std::unique_ptr<Cell>> JailLaunching::boot() {
  pollfd words[2] = {{link_.from_guest.get(), POLLIN, 0}, {child_.pidfd.get(), POLLIN, 0}};
  if (::poll(words, 2, 0) <= 0) return nullptr;
  if (words[0].revents & POLLIN && !(words[1].revents & POLLIN)) return hand_over();
  if (!(words[1].revents & POLLIN)) return nullptr;
  char text[2000];
  ssize_t n = ::pread(complaints_.get(), text, sizeof text, 0);
  std::string why(text, n > 0 ? static_cast<size_t>(n) : 0);
  for (char& c : why)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  while (why.ends_with(' ')) why.pop_back();
  return fail(Code::internal,
              fmt::format("the engine of the sandbox ended before its guest spoke{}{}", why.empty() ? "" : ": ", why));
}

Result<std::unique_ptr<Cell>> JailLaunching::advance() {
  if (booting_) return boot();
  if (check_.valid()) {
    ISOLA_CHECK(hear_check());
    pollfd word{control_.get(), POLLIN, 0};
    if (::poll(&word, 1, 0) <= 0) return furnished_ && network_ && !check_.valid() ? bear() : nullptr;
  }
  auto message = kernel::receive_message(control_.get());
  // One that died before it had read all is "reset".
  if (message ? message->bytes.empty() : message.error().sys_errno == ECONNRESET) {
    if (message && told_to_exec_ && !outfit_) return hand_over();
    if (message && told_to_exec_) {
      ISOLA_CHECK(await_boot());
      return boot();
    }
    if (!network_ && !hand_->alive()) return fail(Code::unavailable, "the helper that makes networks died");
    return fail(Code::internal, "the sandbox's first process died while it was furnished");
  }
  if (!message) return std::unexpected(message.error());
  ISOLA_CHECK(hear(std::move(*message)));
  return furnished_ && network_ && !check_.valid() ? bear() : nullptr;
}

// Everything is there, and is what it should be: it may begin to live.
Result<std::unique_ptr<Cell>> JailLaunching::bear() {
  ISOLA_CHECK(verify_all());
  watch_.lap(Step::verify);
  std::vector<int> last;
  if (network_->tap) last.push_back(network_->tap.get());
  if (int e = kernel::fault::at("say_exec")) return sys_error("cannot tell the unborn jail", e);
  ISOLA_CHECK(kernel::send_message(control_.get(), std::string_view(&kExec, 1), last));
  network_->tap.reset();  // the engine's alone
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
  const std::string errors = outfit_ ? fmt::format("/memfd:{} (deleted)", kComplaints) : null;
  return std::vector<std::string>{null, null, errors, in, out, in, out, its_control_};
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
  watch_.lap(outfit_ ? Step::boot : Step::exec);
  ISOLA_TRY(uint64_t started, kernel::start_time(child_.pid));
  auto cell =
      std::make_unique<JailCell>(kernel::ProcessName{child_.pid, started}, std::move(child_.pidfd), true, kind());
  if (outfit_) cell->set_handle(outfit_->handle);
  cell->set_first_link(std::move(link_));
  cell->set_network(std::move(network_->sockets));
  return cell;
}

}  // namespace

kernel::CgroupLimits group_limits(const Limits& limits) {
  return {.cpus = limits.cpus,
          .memory = limits.memory,
          .pids = limits.pids,
          .io_bytes_per_second = limits.io_bytes_per_second};
}

namespace {

// "/a//b" and "/a/../proc" are other names of what is looked for below.
bool is_plain_path(std::string_view path) {
  for (size_t at = 0; at < path.size();) {
    size_t end = std::min(path.find('/', at + 1), path.size());
    auto part = path.substr(at + 1, end - at - 1);
    if (part.empty() || part == "." || part == "..") return false;
    at = end;
  }
  return true;
}

}  // namespace

Result<void> check_shown(const std::vector<ShownFolder>& all) {
  if (all.size() > kMostShown)
    return fail(Code::invalid, fmt::format("at most {} folders can be shown to a sandbox", kMostShown));
  for (const auto& shown : all) {
    if (shown.target.size() < 2 || shown.target[0] != '/')
      return fail(Code::invalid, "a shown folder needs an absolute path");
    if (!is_plain_path(shown.target))
      return fail(Code::invalid, "a shown folder needs a path without empty parts, '.' and '..': " + shown.target);
    // What stands there protects the sandbox; nothing is laid over it.
    for (std::string_view own : {"/proc", "/sys", "/dev"})
      if (shown.target == own || shown.target.starts_with(std::string(own) + "/"))
        return fail(Code::invalid,
                    "nothing can be shown at " + shown.target + ": " + std::string(own) + " is the sandbox's own");
  }
  return {};
}

Result<std::unique_ptr<Launching>> begin_launch(LaunchParts parts) {
  auto launching = std::make_unique<JailLaunching>(std::move(parts));
  auto started = launching->start();
  if (!started) return std::unexpected(launching->cause_of(started.error()));
  return launching;
}

}  // namespace isola::boundary::jail
