#include "launcher/launcher.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/keyctl.h>
#include <linux/mempolicy.h>
#include <pwd.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <ctime>

#include "base/file.h"
#include "base/log.h"
#include "boundary/choice.h"
#include "boundary/gvisor/gvisor.h"
#include "boundary/jail/jail.h"
#include "boundary/jail/stage.h"
#include "boundary/microvm/microvm.h"
#include "boundary/uml/uml.h"
#include "kernel/capability.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "launcher/cells.h"
#include "launcher/server.h"
#include "launcher/vault_keeper.h"

namespace isola::launcher {

namespace {

// Tells whoever started us how it went, once.
class ReadyWord {
 public:
  explicit ReadyWord(int fd) : fd_(fd) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  void say(std::string_view word) {
    if (fd_) (void)write_all(fd_.get(), word);
    fd_.reset();
  }

 private:
  Fd fd_;
};

// One launcher per data directory.
Result<Fd> take_lock(const std::string& data_dir) {
  ISOLA_CHECK(make_dirs(data_dir, 0700));
  std::string path = data_dir + "/launcher.lock";
  Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return sys_error("cannot open " + path);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) < 0) {
    if (errno == EWOULDBLOCK) return fail(Code::exists, "a launcher runs on " + data_dir + " already");
    return sys_error("cannot lock " + path);
  }
  return lock;
}

Result<void> detach(const std::string& data_dir) {
  pid_t pid = ::fork();
  if (pid < 0) return sys_error("cannot go into the background");
  if (pid > 0) ::_exit(0);
  ::setsid();
  std::string path = data_dir + "/launcher.log";
  Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log || ::dup2(log.get(), 2) < 0) return sys_error("cannot open " + path);
  return {};
}

// A `ulimit` of the shell that happened to start us is nobody's wish for the sandboxes. Where hard limits cannot be
// lifted (a container without CAP_SYS_RESOURCE), those are what this machine has.
void reset_limits() {
  for (auto resource : {RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_AS, RLIMIT_DATA, RLIMIT_RSS, RLIMIT_NPROC, RLIMIT_LOCKS,
                        RLIMIT_RTTIME, RLIMIT_SIGPENDING, RLIMIT_STACK, RLIMIT_NOFILE}) {
    rlimit now{};
    ::getrlimit(resource, &now);
    rlimit free{RLIM_INFINITY, RLIM_INFINITY};
    if (resource != RLIMIT_NOFILE && ::setrlimit(resource, &free) == 0) now = free;
    now.rlim_cur = now.rlim_max;
    if (resource == RLIMIT_STACK) now.rlim_cur = std::min<rlim_t>(now.rlim_max, 8 << 20);  // what programs expect
    ::setrlimit(resource, &now);
  }
}

// Nor are taskset, ionice, chrt, numactl, or a debugger's `setarch -R`, which takes the random addresses from all that
// follows. (Processors that a cpuset keeps from us stay away.)
Result<void> reset_scheduling() {
  const sched_param usual{};
  ::sched_setscheduler(0, SCHED_OTHER, &usual);
  ::setpriority(PRIO_PROCESS, 0, 0);
  ::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  constexpr int kProcess = 1, kNone = 0;  // <linux/ioprio.h> is for C alone
  ::syscall(SYS_ioprio_set, kProcess, 0, kNone);
  ::personality(PER_LINUX);
  unsigned char all[1024];
  std::memset(all, 0xff, sizeof all);
  if (::syscall(SYS_sched_setaffinity, 0, sizeof all, all) < 0) return sys_error("cannot use all processors");
  return {};
}

// It can never be given up again, and nothing inside could change its user: `sudo` would fail without a word of why.
Result<void> refuse_no_new_privs() {
  if (::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0) return {};
  return fail(Code::denied,
              "the launcher was started with no_new_privs, with which no sandbox could have a working sudo; start it "
              "without (NoNewPrivileges= of systemd, allowPrivilegeEscalation of a container, setpriv)");
}

// Nothing of whoever started us may reach a sandbox: descriptors, environment, limits, working folder, mounts.
Result<void> settle(int ready_fd) {
  if (::geteuid() != 0)
    return fail(Code::denied, "the launcher must be root (it makes namespaces, mounts and control groups)");
  unsigned first = 3;
  if (ready_fd >= 3) {
    if (ready_fd > 3) ::syscall(SYS_close_range, 3, static_cast<unsigned>(ready_fd - 1), 0);
    first = static_cast<unsigned>(ready_fd) + 1;
  }
  if (::syscall(SYS_close_range, first, ~0u, 0) < 0) return sys_error("cannot close inherited descriptors");
  for (int signal = 1; signal < NSIG; ++signal) ::signal(signal, SIG_DFL);  // what was ignored would be ignored inside
  ::umask(022);
  ISOLA_CHECK(refuse_no_new_privs());
  reset_limits();
  ISOLA_CHECK(reset_scheduling());
  ::prctl(PR_SET_NAME, "isola-launcher", 0, 0, 0);
  // Not readable or traceable by anybody without privileges, whatever user it borrows for a moment.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot protect the launcher's memory");
  // A restored sandbox is the child of the helper that restored it, until that one ends; and a helper may be killed.
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0) return sys_error("cannot adopt the children of helpers");
  // Of whoever started it: nothing that it makes, restored sandboxes included, shall have those keys.
  if (::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) < 0 && errno != ENOSYS)
    return sys_error("cannot leave the session keyring");
  ISOLA_CHECK(kernel::keep_capabilities_across_setuid());
  if (::unshare(CLONE_NEWNS) < 0)
    return sys_error("cannot make a mount namespace (is this process root, with CAP_SYS_ADMIN?)");
  return kernel::make_all_slave();
}

std::string guest_beside_this_program() {
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof self);
  std::string path(self, n > 0 ? static_cast<size_t>(n) : 0);
  return path.substr(0, path.rfind('/') + 1) + "isola-guest";
}

Result<Fd> watch_signals(EventLoop& loop, std::function<void()> on_stop) {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGTERM, SIGINT, SIGHUP}) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  Fd fd(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return sys_error("cannot watch for signals");
  ISOLA_CHECK(loop.watch(fd.get(), EPOLLIN, [raw = fd.get(), on_stop = std::move(on_stop)](uint32_t) {
    signalfd_siginfo info{};
    while (::read(raw, &info, sizeof info) == sizeof info)
      if (info.ssi_signo != SIGHUP) on_stop();
  }));
  return fd;
}

// 0: root only.
Result<uid_t> user_named(const std::string& name) {
  if (name.empty()) return 0;
  uid_t number = 0;
  auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (bad == std::errc() && end == name.data() + name.size() && number != static_cast<uid_t>(-1)) return number;
  const passwd* user = ::getpwnam(name.c_str());
  if (!user) return fail(Code::invalid, "there is no user '" + name + "' on this machine");
  return user->pw_uid;
}

using GvisorOrWhyNot = Result<std::unique_ptr<boundary::gvisor::Gvisor>>;
using UmlOrWhyNot = Result<std::unique_ptr<boundary::uml::Uml>>;
using MicrovmOrWhyNot = Result<std::unique_ptr<boundary::microvm::Microvm>>;

GvisorOrWhyNot open_gvisor(boundary::jail::Jail& jail) {
  ISOLA_TRY(auto runsc, boundary::gvisor::Runsc::find());
  if (auto concern = runsc.concern(); !concern.empty()) log::warn("launcher", "{}", concern);
  return boundary::gvisor::Gvisor::make(jail, std::move(runsc));
}

UmlOrWhyNot open_uml(boundary::jail::Jail& jail) {
  ISOLA_TRY(auto kernel, boundary::uml::UmlKernel::find());
  if (auto concern = kernel.concern(); !concern.empty()) log::warn("launcher", "{}", concern);
  return boundary::uml::Uml::make(jail, std::move(kernel));
}

MicrovmOrWhyNot open_microvm(boundary::jail::Jail& jail) {
  ISOLA_TRY(auto machine, boundary::microvm::Machine::find());
  if (auto concern = machine.concern(); !concern.empty()) log::warn("launcher", "{}", concern);
  return boundary::microvm::Microvm::make(jail, std::move(machine));
}

std::vector<boundary::Offer> offers_of(const boundary::jail::Jail& jail, const GvisorOrWhyNot& gvisor,
                                       const UmlOrWhyNot& uml, const MicrovmOrWhyNot& microvm) {
  std::vector<boundary::Offer> offers(4);
  for (size_t i = 0; i < offers.size(); ++i) offers[i].kind = static_cast<BoundaryKind>(i);
  offers[0].offered = true;
  offers[0].engine = jail.engine();
  offers[0].detail = "shared kernel";
  offers[1].offered = gvisor.has_value();
  if (gvisor) {
    offers[1].engine = (*gvisor)->engine();
    offers[1].detail = "platform " + (*gvisor)->runsc().platform;
  } else {
    offers[1].missing = gvisor.error().message;
  }
  offers[2].offered = uml.has_value();
  if (uml) {
    offers[2].engine = (*uml)->engine();
    offers[2].detail = "own kernel " + (*uml)->engine().version;
  } else {
    offers[2].missing = uml.error().message;
  }
  offers[3].offered = microvm.has_value();
  if (microvm) {
    const auto& machine = (*microvm)->machine();
    offers[3].engine = (*microvm)->engine();
    offers[3].detail = "own kernel " + machine.kernel_version + (machine.kvm ? ", KVM" : ", without KVM: slow");
  } else {
    offers[3].missing = microvm.error().message;
  }
  return offers;
}

Result<void> serve(const LauncherOptions& options, ReadyWord& ready) {
  ISOLA_TRY(uid_t user, user_named(options.user));
  ISOLA_TRY(EventLoop loop, EventLoop::make());
  // Opened first: it may hold what an earlier launcher left mounted.
  const image::StoreOptions store{.provider = options.layer_store};
  std::string no_disk_limit;
  auto layers = image::open_layer_store(options.data_dir, store, std::nullopt);
  if (!layers) {
    // Then only for those who accept it, request by request; everybody else is told why.
    no_disk_limit = layers.error().message;
    layers = image::open_layer_store(options.data_dir, store, image::AllowUnquotaedDisk{});
  }
  if (!layers) return std::unexpected(layers.error());
  ISOLA_TRY(auto cgroups, kernel::CgroupTree::detect({.disks = {options.data_dir, options.cache_dir + "/blobs"}}));
  if (auto missing = cgroups.missing(); !missing.empty())
    return fail(Code::unsupported, "this machine offers no cgroup controller '" + missing[0] +
                                       "' to us, so a sandbox could not be limited; `isola doctor` says more");
  ISOLA_CHECK(cgroups.prepare());
  std::string guest = options.guest_program.empty() ? guest_beside_this_program() : options.guest_program;
  ISOLA_CHECK(boundary::jail::set_stage({.folder = options.data_dir + "/stage",
                                         .guest_program = guest,
                                         .programs = guest.substr(0, guest.rfind('/') + 1)}));
  ISOLA_TRY(auto jail, boundary::jail::Jail::make(cgroups));
  ISOLA_CHECK(jail->start_hand());
  ISOLA_CHECK(loop.watch(jail->hand_fd(), EPOLLIN, [&](uint32_t) { jail->look_after_hand(); }));
  ISOLA_TRY(auto ranges, IdRanges::open(options.data_dir));
  ISOLA_CHECK(ranges.sweep([&](const std::string& sandbox) {
    auto group = cgroups.adopt(sandbox);
    if (!group) return false;
    auto inside = group->processes();
    group->release();
    // An empty group is what a launcher left whose folder is gone.
    if (inside && inside->empty()) return !cgroups.remove(sandbox);
    return true;
  }));
  ISOLA_TRY(auto journal, Journal::open(options.data_dir + "/run"));

  std::vector<boundary::Boundary*> boundaries = {jail.get()};
  auto gvisor = open_gvisor(*jail);
  if (gvisor) boundaries.push_back(gvisor->get());
  auto uml = open_uml(*jail);
  if (uml) boundaries.push_back(uml->get());
  auto microvm = open_microvm(*jail);
  if (microvm) boundaries.push_back(microvm->get());
  const auto offers = offers_of(*jail, gvisor, uml, microvm);
  Cells cells({.loop = loop,
               .boundaries = boundaries,
               .offers = offers,
               .cgroups = cgroups,
               .layers = **layers,
               .ranges = ranges,
               .journal = journal,
               .blobs = options.cache_dir + "/blobs",
               .images = boundary::jail::kImages,
               .no_disk_limit = no_disk_limit,
               .kept = options.data_dir + "/images",
               .scratch = options.data_dir + "/scratch",
               .authorities = options.authorities});
  Server server(loop, cells,
                {.version = ISOLA_VERSION,
                 .pid = ::getpid(),
                 .boundaries = offers,
                 .layer_store = std::string((*layers)->name()),
                 .disk_enforced = (*layers)->enforces(),
                 .sharing = std::string(image::to_string((*layers)->sharing())),
                 .checkpointer = jail->has_checkpoints() ? "criu" : "",
                 .protections = jail->protections().describe()});

  VaultKeeper vault(loop, {.path = options.data_dir + "/vault/key",
                           .user = [&] { return server.user(); },
                           .authorities = options.authorities});
  vault.open();
  GateKeeper gate(
      loop,
      {.folder = options.data_dir + "/gate",
       .servers = options.name_servers,
       .authorities = options.authorities,
       .open = [&](const OpenRequest& request, auto done) { vault.open_bindings(request, std::move(done)); },
       .key = [&] { return vault.gate_key(); },
       .birth = [&](const std::string& id) { return cells.birth_of(id); }},
      [&](const std::string& id) { return cells.sockets(id); });
  cells.open_secret = [&](const std::string& sealed, const Fd& into, auto done) {
    vault.open_into(sealed, into, std::move(done));
  };
  cells.on_drop = [&](const std::string& id) { return gate.forget(id); };
  cells.is_known_child = [&](pid_t pid) { return pid == gate.pid() || jail->is_hand(pid); };
  EventSpool spool({.folder = options.data_dir + "/gate/events"});
  ISOLA_CHECK(spool.open(false));
  // The launcher before this one took its gate along, and what that had not told.
  spool.append({.kind = gate::Event::Kind::restarted, .when = std::time(nullptr) * 1000});
  server.set_gate(gate, spool);
  server.set_vault(vault);

  bool stopping = false, wait_for_all = false;
  std::optional<EventLoop::TimerId> idle;
  auto look = [&] {
    // Those that were killed are still there until their ends are seen; the others may live on.
    if (stopping && (wait_for_all ? cells.empty() : cells.parked() + cells.ending() == 0) && cells.cleaning() == 0)
      return loop.stop();
    bool in_use = server.connections() > 0 || cells.live() > 0 || stopping;
    if (idle) loop.cancel(*std::exchange(idle, std::nullopt));
    if (options.linger.count() > 0 && !in_use)
      idle = loop.after(options.linger, [&] {
        idle.reset();
        stopping = true;
        cells.kill_parked();
        if (cells.empty()) loop.stop();
      });
  };
  auto stop = [&](bool end_all) {
    stopping = true;
    wait_for_all = end_all;
    if (end_all)
      cells.kill_all();
    else
      cells.kill_parked();
    look();
  };
  cells.on_ended = [&](OwnerId owner, const Ended& ended) { server.send_event(owner, ended); };
  cells.on_change = server.on_change = look;
  server.on_shutdown = stop;
  ISOLA_TRY(Fd signals, watch_signals(loop, [&] { stop(false); }));
  ISOLA_CHECK(cells.start());
  std::string socket = options.data_dir + "/launcher.sock";
  ISOLA_CHECK(server.listen(socket, user));
  // Behind that: on whose behalf sources are read is known now. Nobody is heard before the loop runs.
  ISOLA_CHECK(gate.restore());
  ready.say("ready\n");
  log::info("launcher", "ready on {} (boundaries: {}; disk limits by {})", options.data_dir, boundary::names_of(offers),
            (*layers)->name());
  look();
  auto ran = loop.run();
  ::unlink(socket.c_str());
  return ran;
}

}  // namespace

Result<void> run_launcher(const LauncherOptions& options) {
  ReadyWord ready(options.ready_fd);
  auto run = [&]() -> Result<void> {
    kernel::fault::arm_from_environment();
    if (options.data_dir.empty() || options.data_dir[0] != '/')
      return fail(Code::invalid, "the data directory must be an absolute path");
    if (::geteuid() != 0)
      return fail(Code::denied, "the launcher must be root (it makes namespaces, mounts and control groups)");
    ISOLA_CHECK(make_dirs(options.data_dir, 0700));
    if (options.daemon) ISOLA_CHECK(detach(options.data_dir));
    ISOLA_CHECK(settle(options.ready_fd));
    auto lock = take_lock(options.data_dir);
    if (!lock && lock.error().code == Code::exists) ready.say("running\n");
    if (!lock) return std::unexpected(lock.error());
    return serve(options, ready);
  };
  auto result = run();
  if (!result) {
    log::error("launcher", "{}", result.error().message);
    ready.say(result.error().message + "\n");
  }
  return result;
}

}  // namespace isola::launcher
