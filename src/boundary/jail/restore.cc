// A jail made from a checkpoint.
//
//   launcher                                   helper                                   criu (in the sandbox's cgroup)
//   begin_restore: starts the helper      →    own mount namespace, starts criu     →   is loaded, and waits
//                                         ←R   root, image files; tells criu what   →   user, pid, mount, … namespaces
//                                              lets a process check the files
//   configures the network, its sockets   ←N   setup-namespaces                     ←
//   reads the network back                 →                                        →   memory, files, credentials
//   lets connections inside go, reads it  ←U   network-unlock, if there are any     ←
//     back then
//   compares what is installed, kills     ←V   pre-resume: every process is stopped ←
//   writes the journal, proceed()          →                                        →   lets the processes go
//   reads the filter back, hands over     ←+   done
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/codec.h"
#include "base/file.h"
#include "boundary/jail/cell.h"
#include "boundary/jail/checkpoint.h"
#include "boundary/jail/criu_rpc.h"
#include "boundary/jail/external_mounts.h"
#include "boundary/jail/image_files.h"
#include "boundary/jail/jail.h"
#include "boundary/jail/root.h"
#include "boundary/jail/stage.h"
#include "kernel/helper.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::boundary::jail {

namespace {

using kernel::Helper;

constexpr char kRooted = 'R', kNamespaces = 'N', kUnlock = 'U', kVerify = 'V';

ino_t namespace_of(pid_t pid, const char* kind) {
  struct stat st{};
  return ::stat(fmt::format("/proc/{}/ns/{}", pid, kind).c_str(), &st) == 0 ? st.st_ino : 0;
}

// Of the group, those that are in the sandbox: criu itself is in the group, but not in its namespaces.
Result<std::vector<pid_t>> inside(const kernel::CgroupTree& cgroups, const std::string& name, pid_t first) {
  ISOLA_TRY(auto group, cgroups.adopt(name));
  auto pids = group.processes();
  group.release();
  if (!pids) return std::unexpected(pids.error());
  ino_t own = namespace_of(first, "pid");
  if (own == 0) return fail(Code::not_found, "process 1 of the sandbox is gone");
  std::erase_if(*pids, [&](pid_t pid) { return namespace_of(pid, "pid") != own; });
  return *pids;
}

// They are stopped by criu, which would let them go whatever it is told: so they die before it is told anything. A
// process that is stopped by its tracer runs no further instruction once SIGKILL is on its way.
void kill_inside(const kernel::CgroupTree& cgroups, const std::string& name, pid_t first) {
  if (first == 0) return;  // there is nobody yet
  if (auto pids = inside(cgroups, name, first))
    for (pid_t pid : *pids) ::kill(pid, SIGKILL);
  ::kill(first, SIGKILL);
}

// A user namespace with nobody in it, for its map: the restored one exists only once criu is at work, and the root must
// be mounted before. (Keeping them would spare nothing: a range of ids rests for thousands of sandboxes.) Whoever was
// in it is not waited for, which takes as long as making it: the launcher reaps it when this helper has ended.
Result<Fd> user_namespace(uint32_t base) {
  ISOLA_TRY(auto child, kernel::spawn(CLONE_NEWUSER, [] {
              for (;;) ::pause();
              return 0;
            }));
  auto opened = [&]() -> Result<Fd> {
    ISOLA_CHECK(kernel::write_id_maps(child.pid, base, kIdCount));
    return kernel::open_namespace(child.pid, "user");
  }();
  (void)kernel::send_signal(child.pidfd.get(), SIGKILL);
  return opened;
}

// criu looks the root and the external mounts up as the sandbox's root, which may not walk into the data directory: so
// the stage is bound, in this mount namespace, where everybody can.
Result<std::string> bind_stage() {
  ISOLA_TRY(Fd stage, kernel::clone_tree(AT_FDCWD, "."));
  for (const char* place : {"/mnt", "/srv", "/media", "/tmp"}) {
    Fd point(::open(place, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    struct stat st{};
    if (!point || ::fstat(point.get(), &st) < 0 || (st.st_mode & 0005) != 0005) continue;
    ISOLA_CHECK(kernel::attach(stage.get(), point.get(), "."));
    if (::chdir(place) < 0) return sys_error("cannot enter the stage");
    return place;
  }
  return fail(Code::unsupported, "this machine has none of /mnt, /srv, /media and /tmp");
}

// The check of the image files, in a process of its own, which waits for begin(): before that both processors are at
// work on what the restore waits for.
class Check {
 public:
  explicit Check(const std::function<Result<void>()>& check) {
    if (!check) return;
    auto helper = Helper::start({.name = "isola-check"}, [&](Helper::Talk& talk) -> Result<std::string> {
      ISOLA_TRY(auto word, kernel::receive_message(talk.socket(), 16));
      if (word.bytes.empty()) return fail(Code::unavailable, "whoever asked for it is gone");
      ISOLA_CHECK(check());
      return "";
    });
    if (helper)
      helper_ = std::move(*helper);
    else
      failed_ = std::unexpected(helper.error());
  }
  void begin() {
    if (std::exchange(begun_, true) || !helper_.valid()) return;
    if (auto told = helper_.answer(true); !told) failed_ = std::unexpected(told.error());
  }
  Result<void> wait() {
    begin();
    ISOLA_CHECK(failed_);
    if (!helper_.valid()) return {};
    auto word = helper_.next();
    kernel::wait_for(helper_.pid());
    helper_ = {};
    if (!word) failed_ = std::unexpected(word.error());
    return failed_;
  }
  int fd() const { return helper_.fd(); }
  ~Check() {
    helper_.kill();
    if (helper_.valid()) kernel::wait_for(helper_.pid());
  }
  Check(const Check&) = delete;
  Check& operator=(const Check&) = delete;

 private:
  Helper helper_;
  Result<void> failed_;
  bool begun_ = false;
};

std::string pid_bytes(pid_t pid) {
  Writer out;
  out.i32(pid);
  return out.take();
}

// In the helper. What it returns is the number of process 1.
Result<std::string> bring_back(Helper::Talk& talk, const RestoreParts& parts, const kernel::CgroupDoors& doors) {
  const auto& spec = parts.spec;
  const auto& rules = parts.wanted.mounts;
  Check check(spec.memory->check);  // in the launcher's mount namespace, still
  ISOLA_CHECK(criu::enter_criu_world(kCriuRun));
  criu::Birth birth;
  birth.cgroup = doors.folder.get();
  birth.owner = spec.id_base;
  // The restored processes are children of criu's: what it is in, they are in.
  birth.before_exec = [&]() -> Result<void> {
    ISOLA_CHECK(doors.enter());
    if (::unshare(CLONE_NEWCGROUP) < 0) return sys_error("cannot make a cgroup namespace");
    if (::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) < 0 && errno != ENOSYS)
      return sys_error("cannot leave the session keyring");
    return {};
  };
  // It is loaded while the root is made.
  ISOLA_TRY(auto servant, criu::Servant::start({parts.criu.program, parts.criu.preload}, birth));
  ISOLA_CHECK(criu::link_image(spec.memory->folder, spec.memory->scratch,
                               {.id = spec.id, .id_base = spec.id_base, .id_count = kIdCount}));
  ISOLA_TRY(std::string filter, criu::filter_hash(spec.memory->folder));
  ISOLA_TRY(const bool connected, criu::has_connections(spec.memory->folder));
  ISOLA_TRY(Fd userns, user_namespace(spec.id_base));
  ISOLA_TRY(Root root, make_root(spec.lowers, spec.layer, userns.get(), spec.id_base, rules[0].attributes));
  Fd images(::open(spec.memory->scratch.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!images) return sys_error("cannot open " + spec.memory->scratch);
  ISOLA_TRY(std::string stage, bind_stage());
  ISOLA_CHECK(kernel::attach(root.mount.get(), AT_FDCWD, kNewRoot));
  ISOLA_CHECK(criu::prepare_sources(rules));
  ISOLA_CHECK(criu::prepare_dev(rules, userns.get()));
  ISOLA_CHECK(criu::prepare_shown(spec.shown, userns.get()));

  ISOLA_CHECK(talk.say(kRooted, ""));  // for the clock

  pid_t first = 0;  // told at the first of the two points only
  auto give_up = [&] {
    kill_inside(parts.cgroups, spec.cgroup, first);
    // It would wait for process 1, which waits for the others, which are criu's to reap: for ever.
    ::kill(servant.pid(), SIGKILL);
  };
  criu::Hooks hooks;
  hooks.on_notify = [&](const std::string& point, pid_t pid) -> Result<void> {
    if (point == "setup-namespaces")
      return talk.ask(kNamespaces, pid_bytes(first = pid) + std::string(1, static_cast<char>(connected)));
    const bool unlock = point == "network-unlock" && connected;
    if (point != "pre-resume" && !unlock) return {};
    auto good = unlock ? talk.ask(kUnlock, pid_bytes(first)) : check.wait();
    if (good && !unlock) good = talk.ask(kVerify, pid_bytes(first) + filter);
    if (!good) give_up();
    return good;
  };
  // Files that are too short let criu read the same place for ever.
  hooks.beside = check.fd();
  hooks.on_word = [&]() -> Result<void> {
    auto good = check.wait();
    if (!good) give_up();
    return good;
  };
  criu::Options options{.images = images.get(), .external = criu::external_for_restore(rules, stage)};
  check.begin();
  auto pid = servant.restore(options, stage + "/" + kNewRoot, hooks);
  if (pid) {
    // criu has let the processes go before it says so; nobody waits for its end, nor for ours.
    // The filter is the one thing that cannot be read while criu holds the process. Process 1 has to stop for it, which
    // its neighbours inside can delay for as long as they like: here that is nobody's time but their own.
    ISOLA_TRY(std::string installed, kernel::installed_filter_hash(*pid));
    ISOLA_CHECK(talk.finish(pid_bytes(*pid) + installed));
    return "";
  }
  // What the check found explains whatever criu stumbled over before it was asked.
  if (auto whole = check.wait(); !whole) return std::unexpected(whole.error());
  std::string log = read_file_at(images.get(), "restore.log").value_or("");
  return std::unexpected(pid.error().in("the memory of the sandbox cannot be restored" + reasons_of(log)));
}

class JailRestoring : public Launching {
 public:
  explicit JailRestoring(RestoreParts parts) : parts_(std::move(parts)), watch_(latency_) {}
  // The rest of the group is killed by whoever removes it.
  ~JailRestoring() override {
    if (!handed_over_) helper_.kill();
  }

  int fd() const override { return helper_.fd(); }
  CellName name() const override {
    if (!verified_) return {};
    return {.kind = BoundaryKind::jail, .process = {pid_, kernel::start_time(pid_).value_or(0)}, .handle = {}};
  }
  const Latency& latency() const override { return latency_; }

  Result<void> start() {
    ISOLA_TRY(auto group, parts_.cgroups.adopt(parts_.spec.cgroup));
    auto doors = group.doors();
    group.release();
    if (!doors) return std::unexpected(doors.error());
    std::vector<int> keep;
    for (const auto& door : doors->files) keep.push_back(door.get());
    if (doors->folder) keep.push_back(doors->folder.get());
    for (const auto& shown : parts_.spec.shown) keep.push_back(shown.tree.get());
    ISOLA_TRY(helper_, Helper::start({.name = "isola-waker", .capabilities = kernel::kAllButMachine, .keep = keep},
                                     [&](Helper::Talk& talk) { return bring_back(talk, parts_, *doors); }));
    watch_.lap(Step::clone);
    return {};
  }

  Result<std::unique_ptr<Cell>> advance() override {
    ISOLA_TRY(auto word, helper_.next());
    watch_.lap(word.kind == kRooted ? Step::root : Step::restore);
    if (word.kind == kRooted) return nullptr;
    Reader in(word.bytes);
    pid_t pid = in.i32();
    if (!in.ok() || pid <= 1) return fail(Code::corrupt, "a restore named no process");
    switch (word.kind) {
      case kNamespaces: {
        pid_ = pid;
        ISOLA_TRY(Fd netns, kernel::open_namespace(pid, "net"));
        ISOLA_TRY(sockets_, parts_.network.make(netns.get()));
        // What one end has not sent yet criu sends as soon as it is made, when the other end may not be there.
        if (in.u8() != 0) ISOLA_CHECK(parts_.network.hold_connections(netns.get()));
        watch_.lap(Step::network);
        ISOLA_CHECK(helper_.answer(true));
        // While criu fills the memory in: until it is compared nobody but criu runs in there, and criu changes nothing
        // of what is read.
        read_network(netns.get());
        return nullptr;
      }
      case kUnlock: {
        auto unlocked = pid == pid_ ? unlock() : fail(Code::corrupt, "another process 1");
        if (!unlocked) {
          kill_inside(parts_.cgroups, parts_.spec.cgroup, pid_);
          return std::unexpected(unlocked.error());
        }
        ISOLA_CHECK(helper_.answer(true));
        return nullptr;
      }
      case kVerify: {
        auto same = pid == pid_ ? verify_all(std::string(in.rest())) : fail(Code::corrupt, "another process 1");
        watch_.lap(Step::verify);
        if (!same) {
          kill_inside(parts_.cgroups, parts_.spec.cgroup, pid_);
          return std::unexpected(same.error());
        }
        verified_ = true;  // the caller writes it down, and lets it proceed
        return nullptr;
      }
      case Helper::kDone: return hand_over(pid, std::string(in.rest()));
      default: return fail(Code::internal, "unexpected word from a restore");
    }
  }
  Result<void> proceed() override { return helper_.answer(true); }

 private:
  Result<void> unlock() {
    ISOLA_TRY(Fd netns, kernel::open_namespace(pid_, "net"));
    ISOLA_CHECK(parts_.network.release_connections(netns.get()));
    read_network(netns.get());  // without the rules that held them
    return {};
  }

  // An error ends the launch where the comparison would: whoever is there then has to be killed first.
  void read_network(int netns) {
    struct stat st{};
    netns_ = ::fstat(netns, &st) == 0 ? st.st_ino : 0;
    network_ = parts_.network.describe(netns);
  }

  // Every process exists as it will be, and none of its instructions has run since it was saved.
  Result<void> verify_all(const std::string& filter) {
    ISOLA_TRY(auto group, parts_.cgroups.adopt(parts_.spec.cgroup));
    auto limited = group.set_cpus(parts_.spec.limits.cpus);
    if (limited && parts_.wanted.limits.wants_io()) limited = group.set_io(parts_.wanted.limits);
    auto limits = limited ? group.limits() : std::unexpected(limited.error());
    group.release();
    if (!limits) return std::unexpected(limits.error());
    if (!network_) return std::unexpected(network_.error());
    if (netns_ == 0 || namespace_of(pid_, "net") != netns_)
      return fail(Code::internal, "protection mismatch: the network namespace should be the one that was configured");
    ISOLA_CHECK(verify_around(parts_.wanted, *limits, *network_));
    ISOLA_CHECK(verify(pid_, parts_.wanted, &filter));
    ISOLA_TRY(auto pids, inside(parts_.cgroups, parts_.spec.cgroup, pid_));
    return verify_companions(pid_, pids, parts_.wanted);
  }

  Result<std::unique_ptr<Cell>> hand_over(pid_t pid, const std::string& filter) {
    if (!verified_ || pid != pid_) return fail(Code::internal, "a restore ended before it was looked at");
    if (filter != parts_.wanted.filter_hash) {  // until here it was the image's word
      kill_inside(parts_.cgroups, parts_.spec.cgroup, pid);
      return fail(Code::internal, "protection mismatch: the seccomp filter should be '" + parts_.wanted.filter_hash +
                                      "' but is '" + filter + "'");
    }
    ISOLA_TRY(uint64_t started, kernel::start_time(pid));
    ISOLA_TRY(Fd pidfd, kernel::open_pidfd(kernel::ProcessName{pid, started}));
    watch_.lap(Step::verify);
    // It becomes our child when the helper, which criu made its parent, has ended.
    auto cell = std::make_unique<JailCell>(kernel::ProcessName{pid, started}, std::move(pidfd), true);
    cell->set_parent(helper_.take_pidfd());
    cell->set_network(std::move(sockets_));
    handed_over_ = true;
    return cell;
  }

  RestoreParts parts_;
  Latency latency_;
  Stopwatch watch_;
  Helper helper_;
  pid_t pid_ = 0;
  bool verified_ = false, handed_over_ = false;
  IslandSockets sockets_;
  Result<std::string> network_;  // as it was read back; "" is what no network is like
  ino_t netns_ = 0;              // of which namespace
};

}  // namespace

Result<std::unique_ptr<Launching>> begin_restore(RestoreParts parts) {
  if (parts.criu.program.empty()) return fail(Code::unsupported, "there is no criu on this machine");
  auto restoring = std::make_unique<JailRestoring>(std::move(parts));
  ISOLA_CHECK(restoring->start());
  return restoring;
}

}  // namespace isola::boundary::jail
