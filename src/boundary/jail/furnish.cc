#include "boundary/jail/furnish.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <linux/keyctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "base/codec.h"
#include "base/file.h"
#include "boundary/jail/network_hand.h"
#include "boundary/jail/stage.h"
#include "kernel/capability.h"
#include "kernel/fault.h"
#include "kernel/mount.h"
#include "kernel/process.h"

namespace isola::boundary::jail {

namespace {

using kernel::fault::at;

Result<void> become_inner_root() {
  if (int e = at("setgroups")) return sys_error("cannot become root of the sandbox", e);
  if (::setgroups(0, nullptr) < 0 || ::setresgid(0, 0, 0) < 0 || ::setresuid(0, 0, 0) < 0)
    return sys_error("cannot become root of the sandbox");
  return {};
}

// Leaves the launcher's session, keyring and control-group view behind.
Result<void> cut_ties(const std::string& id) {
  ::setsid();
  if (int e = at("unshare_cgroup")) return sys_error("cannot make a cgroup namespace", e);
  if (::unshare(CLONE_NEWCGROUP) < 0) return sys_error("cannot make a cgroup namespace");
  if (int e = at("keyctl")) return sys_error("cannot leave the session keyring", e);
  // A kernel without keyrings has none to inherit.
  if (::syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, nullptr) < 0 && errno != ENOSYS)
    return sys_error("cannot leave the session keyring");
  if (int e = at("sethostname")) return sys_error("cannot set the host name", e);
  if (::sethostname("isola", 5) < 0) return sys_error("cannot set the host name");
  if (int e = at("setdomainname")) return sys_error("cannot set the domain name", e);
  // Where the guest looks for its own name: it changes with a restore as another sandbox, and nobody inside can set it.
  if (::setdomainname(id.data(), id.size()) < 0) return sys_error("cannot set the domain name");
  ::umask(022);
  return {};
}

// `given`: the root, of a box, disks and shown folders; in the order of their rules.
Result<Fd> make_mount(const MountRule& rule, int root, int wire, std::vector<Fd>& given) {
  switch (rule.from) {
    case MountRule::From::filesystem: {
      auto options = rule.options;
      options.insert(options.begin(), {"source", "isola"});
      return kernel::make_filesystem(rule.source, options, rule.attributes);
    }
    case MountRule::From::stage: {
      ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, rule.source));
      ISOLA_CHECK(kernel::set_attributes(tree.get(), rule.attributes));
      return tree;
    }
    case MountRule::From::itself: {
      ISOLA_TRY(Fd tree, kernel::clone_tree(root, rule.target));
      ISOLA_CHECK(kernel::set_attributes(tree.get(), rule.attributes));
      return tree;
    }
    case MountRule::From::root:
    case MountRule::From::disk:
    case MountRule::From::shown: {
      if (given.empty()) return fail(Code::internal, "a shown folder is missing");
      Fd tree = std::move(given.front());
      given.erase(given.begin());
      return tree;
    }
    case MountRule::From::own: {
      ISOLA_TRY(Fd tree, kernel::clone_tree(root, rule.source));
      ISOLA_CHECK(kernel::set_attributes(tree.get(), rule.attributes));
      return tree;
    }
    case MountRule::From::host: {
      ISOLA_TRY(Fd tree, kernel::clone_tree(AT_FDCWD, rule.source));
      ISOLA_CHECK(kernel::set_attributes(tree.get(), rule.attributes));
      return tree;
    }
    case MountRule::From::wire: return kernel::clone_tree(wire, "");
  }
  return fail(Code::internal, "unknown kind of mount");
}

// Makes the place where a shown folder (or file) goes, component by component and without following a symlink.
Result<void> make_place(int root, const std::string& path, bool folder) {
  Fd folder_above;
  size_t from = 0;
  for (;;) {
    size_t slash = path.find('/', from);
    std::string name = path.substr(from, slash - from);
    bool last = slash == std::string::npos;
    if (name.empty() || name == "." || name == "..") return fail(Code::invalid, "/" + path + " is not a plain path");
    int dir = folder_above ? folder_above.get() : root;
    if (int e = at("make_place")) return sys_error("cannot make /" + path, e);
    if (last && !folder) {
      Fd made(::openat(dir, name.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644));
      if (!made) return sys_error("cannot make /" + path);
      return {};
    }
    if (::mkdirat(dir, name.c_str(), 0755) < 0 && errno != EEXIST) return sys_error("cannot make /" + path);
    if (last) return {};
    ISOLA_TRY(Fd next, kernel::open_beneath(dir, name, O_DIRECTORY));
    folder_above = std::move(next);
    from = slash + 1;
  }
}

Result<void> put_files(int root, const Outfit& outfit) {
  for (const auto& [path, text] : outfit.files) {
    if (path.ends_with('/')) {
      ISOLA_CHECK(make_place(root, path.substr(0, path.size() - 1), true));
      continue;
    }
    ISOLA_CHECK(make_place(root, path, false));
    ISOLA_CHECK(write_file_at(root, path.c_str(), text));
  }
  return {};
}

// fds[0] is the root; the rest are shown folders, in the order of their rules. A box has a root of its own, and the one
// that it is given is a mount in it.
Result<void> mount_everything(const Furnishing& f, int wire, std::vector<Fd> fds) {
  const Protections& protections = *f.protections;
  Fd root_mount;
  if (f.outfit) {
    ISOLA_TRY(root_mount, make_mount(protections.mounts[0], -1, -1, fds));
  } else {
    root_mount = std::move(fds.front());
    fds.erase(fds.begin());
  }
  ISOLA_CHECK(kernel::make_all_private());
  ISOLA_CHECK(kernel::attach(root_mount.get(), AT_FDCWD, kNewRoot));
  if (int e = at("open_root")) return sys_error("cannot open the new root", e);
  Fd root(::open(kNewRoot, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!root) return sys_error("cannot open the new root");
  if (f.outfit) ISOLA_CHECK(put_files(root.get(), *f.outfit));
  for (size_t i = 1; i < protections.mounts.size(); ++i) {
    const MountRule& rule = protections.mounts[i];
    auto mount = make_mount(rule, root.get(), wire, fds);
    if (!mount) return std::unexpected(mount.error().in("/" + rule.target));
    // The root of a box is empty but for what was put there.
    const bool bare = f.outfit && ::faccessat(root.get(), rule.target.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) < 0;
    if (rule.from == MountRule::From::shown || bare) {
      // As the kernel has it: a filesystem that somebody serves is not asked, and nobody waits for an answer.
      struct statx what{};
      if (::statx(mount->get(), "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &what) < 0)
        return sys_error("cannot look at what is shown at /" + rule.target);
      auto made = make_place(root.get(), rule.target, S_ISDIR(what.stx_mode));
      if (!made) return std::unexpected(made.error().in("/" + rule.target));
    }
    auto attached = kernel::attach(mount->get(), root.get(), rule.target);
    if (!attached) return std::unexpected(attached.error().in("/" + rule.target));
  }
  if (int e = at("pivot_root")) return sys_error("cannot change the root", e);
  // The old root ends up on top of the new one, and is taken off it.
  if (::fchdir(root.get()) < 0 || ::syscall(SYS_pivot_root, ".", ".") < 0) return sys_error("cannot change the root");
  if (int e = at("leave_root")) return sys_error("cannot leave the old root", e);
  if (::umount2(".", MNT_DETACH) < 0) return sys_error("cannot leave the old root");
  if (::chdir("/") < 0) return sys_error("cannot enter the new root");
  return {};
}

Result<void> set_resource_limit(int resource, rlim_t value) {
  rlimit current{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &current) < 0) return sys_error("cannot read a limit");
  rlim_t wanted = std::min(value, current.rlim_max);
  rlimit next{wanted, wanted};
  if (int e = at("setrlimit")) return sys_error("cannot set a limit", e);
  if (::setrlimit(static_cast<__rlimit_resource>(resource), &next) < 0) return sys_error("cannot set a limit");
  return {};
}

Result<void> limit_resources(uint32_t open_files) {
  for (const auto& limit : resource_limits(open_files)) ISOLA_CHECK(set_resource_limit(limit.resource, limit.value));
  if (int e = at("scheduler")) return sys_error("cannot set the scheduling", e);
  sched_param plain{};
  if (::sched_setscheduler(0, SCHED_OTHER, &plain) < 0) return sys_error("cannot set the scheduling");
  return {};
}

// Caps last but one: installing a filter without no_new_privs (which would break sudo inside) needs CAP_SYS_ADMIN.
Result<void> give_up_privileges(const Furnishing& f) {
  // What is inheritable survives the exec of the guest although the bounding set lacks it. It must be set while that
  // set still has it.
  const uint64_t badge = f.protections->badge;
  ISOLA_CHECK(kernel::set_capabilities(~uint64_t{0}, ~uint64_t{0}, badge));
  ISOLA_CHECK(kernel::limit_bounding_set(f.protections->capabilities));
  if (f.filter) ISOLA_CHECK(f.filter->install());
  const uint64_t own = f.protections->capabilities | badge;
  return kernel::set_capabilities(own, own, badge);
}

// Descriptors of the guest: 0–2 /dev/null (2 of a box: the engine's complaints), 3–6 the link, 7 this conversation
// (closed by exec), nothing else.
Result<void> arrange_descriptors(const Furnishing& f) {
  constexpr int kFirst = 3, kControl = 7, kParking = 100;
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null) return sys_error("cannot open /dev/null");
  if (int e = at("arrange_fds")) return sys_error("cannot arrange descriptors", e);
  // Out of the way first, so that no target overwrites a source.
  int parked[6];
  const int sources[6] = {f.link[0], f.link[1], f.link[2],
                          f.link[3], f.control, f.complaints >= 0 ? f.complaints : null.get()};
  for (int i = 0; i < 6; ++i) {
    parked[i] = ::fcntl(sources[i], F_DUPFD_CLOEXEC, kParking);
    if (parked[i] < 0) return sys_error("cannot arrange descriptors");
  }
  for (int fd = 0; fd < kFirst; ++fd)
    if (::dup2(fd == 2 ? parked[5] : null.get(), fd) < 0) return sys_error("cannot arrange descriptors");
  (void)null.release();  // below it is closed or replaced with the rest
  for (int i = 0; i < 4; ++i)
    if (::dup2(parked[i], kFirst + i) < 0) return sys_error("cannot arrange descriptors");
  if (::dup3(parked[4], kControl, O_CLOEXEC) < 0) return sys_error("cannot arrange descriptors");
  if (int e = at("close_range")) return sys_error("cannot close inherited descriptors", e);
  if (::syscall(SYS_close_range, kControl + 1, ~0u, 0) < 0) return sys_error("cannot close inherited descriptors");
  return {};
}

Result<void> reset_signals() {
  sigset_t none;
  ::sigemptyset(&none);
  if (::sigprocmask(SIG_SETMASK, &none, nullptr) < 0) return sys_error("cannot reset signals");
  ::signal(SIGPIPE, SIG_DFL);  // the only one that the launcher ignores; it began by making all others default
  return {};
}

Result<std::vector<Fd>> await(int control, char word) {
  if (int e = at("await_word")) return sys_error("cannot hear the launcher", e);
  ISOLA_TRY(auto message, kernel::receive_message(control, 16));
  if (message.bytes.empty()) return fail(Code::unavailable, "the launcher is gone");
  if (message.bytes[0] != word) return fail(Code::internal, "unexpected word from the launcher");
  return std::move(message.fds);
}

Result<void> live(const Furnishing& f) {
  ISOLA_CHECK(f.cgroup->enter());
  // Made here and not by clone: the launcher goes on with the ids and the root meanwhile.
  if (int e = at("unshare_net")) return sys_error("cannot make a network namespace", e);
  if (::unshare(CLONE_NEWNET) < 0) return sys_error("cannot make a network namespace");
  Fd wire;
  using Shape = IslandNetwork::Shape;
  const Shape shape = !f.outfit ? Shape::alone : f.outfit->tapped ? Shape::tapped : Shape::wired;
  if (shape == Shape::wired) {  // that was the engine's; the sandbox's own is another
    if (int e = at("unshare_wire")) return sys_error("cannot make a network namespace", e);
    wire = Fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!wire || ::unshare(CLONE_NEWNET) < 0) return sys_error("cannot make a network namespace");
  }
  // Configured by another process while this one goes on.
  ISOLA_CHECK(ask_for_network(f.hand, f.control, shape, wire.get()));
  ::close(f.hand);
  ISOLA_TRY(auto fds, await(f.control, kFurnish));
  if (fds.empty()) return fail(Code::internal, "the root is missing");

  ISOLA_CHECK(become_inner_root());
  ISOLA_CHECK(cut_ties(f.id));
  ISOLA_CHECK(mount_everything(f, wire.get(), std::move(fds)));
  ISOLA_CHECK(arrange_descriptors(f));  // before the limit: it needs high numbers for a moment
  ISOLA_CHECK(limit_resources(f.protections->open_files));
  ISOLA_CHECK(reset_signals());
  ISOLA_CHECK(give_up_privileges(f));
  constexpr int kControl = 7;
  if (int e = at("say_furnished")) return sys_error("cannot tell the launcher", e);
  ISOLA_CHECK(kernel::send_message(kControl, std::string_view(&kFurnished, 1)));
  ISOLA_TRY(auto last, await(kControl, kExec));
  if (shape == Shape::tapped) {
    constexpr int kTap = 8;
    if (last.size() != 1) return fail(Code::internal, "the sandbox's network device is missing");
    // That number may be its own already.
    if (last[0].get() == kTap ? ::fcntl(kTap, F_SETFD, 0) < 0 : ::dup2(last[0].get(), kTap) < 0)
      return sys_error("cannot arrange descriptors");
    if (last[0].get() == kTap) (void)last[0].release();
  }

  std::string program = kGuestProgram;
  std::vector<std::string> words = {"isola-guest", "--id", f.id};
  if (f.outfit) {
    words = {"isola-guest"};
    words.insert(words.end(), f.outfit->relay.begin(), f.outfit->relay.end());
    words.emplace_back("--");
    words.insert(words.end(), f.outfit->engine.begin(), f.outfit->engine.end());
  }
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> environment = f.outfit ? f.outfit->environment : std::vector<std::string>{};
  std::vector<char*> env;
  for (auto& word : environment) env.push_back(word.data());
  env.push_back(nullptr);
  if (int e = at("execve")) return sys_error("cannot start the guest", e);
  ::execve(program.c_str(), argv.data(), env.data());
  return sys_error("cannot start the guest");
}

}  // namespace

std::string encode_error(const Error& error) {
  Writer out;
  out.u8(static_cast<uint8_t>(kFailed));
  out.u8(static_cast<uint8_t>(error.code));
  out.i32(error.sys_errno);
  out.str(error.message);
  return out.take();
}

Error decode_error(std::string_view bytes) {
  Reader in(bytes);
  in.u8();
  Error error;
  error.code = static_cast<Code>(in.u8());
  error.sys_errno = in.i32();
  error.message = in.str();
  if (!in.done()) return Error{Code::corrupt, "the unborn jail sent an unreadable error"};
  return error;
}

int become_guest(const Furnishing& furnishing) {
  auto lived = live(furnishing);  // returns only on failure
  // The conversation may sit on its own number or, once arranged, on 7; whichever is open takes the message.
  std::string message = encode_error(lived.error());
  if (!kernel::send_message(7, message)) (void)kernel::send_message(furnishing.control, message);
  return 1;
}

}  // namespace isola::boundary::jail
