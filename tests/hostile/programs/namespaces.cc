// Namespaces: new ones give back the rights that were taken, and other ones are somewhere else.
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// A child by raw clone; it leaves at once.
long clone_with(unsigned long flags) {
  long pid = ::syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0);
  if (pid == 0) ::_exit(0);
  if (pid > 0) ::waitpid(static_cast<pid_t>(pid), nullptr, 0);
  return pid;
}

Outcome unshare_each(const Args&) {
  Attempts attempts;
  struct {
    const char* name;
    int flag;
  } kinds[] = {{"mount", CLONE_NEWNS}, {"pid", CLONE_NEWPID},       {"net", CLONE_NEWNET},  {"ipc", CLONE_NEWIPC},
               {"uts", CLONE_NEWUTS},  {"cgroup", CLONE_NEWCGROUP}, {"time", CLONE_NEWTIME}};
  for (auto [name, flag] : kinds) attempts.add(fmt::format("unshare {}", name), ::unshare(flag));
  return attempts.outcome();
}

Outcome unshare_user(const Args&) { return judge("unshare user", ::unshare(CLONE_NEWUSER)); }

Outcome clone_user(const Args&) {
  Attempts attempts;
  attempts.add("clone user", clone_with(CLONE_NEWUSER));
  attempts.add("clone user with high bits", clone_with(CLONE_NEWUSER | 0x700000000UL));
  attempts.add("clone mount", clone_with(CLONE_NEWNS));
  attempts.add("clone net", clone_with(CLONE_NEWNET));
  return attempts.outcome();
}

// The flags lie in memory, where a filter cannot see them.
Outcome clone3_user(const Args&) {
  clone_args arguments{};
  arguments.flags = CLONE_NEWUSER;
  arguments.exit_signal = SIGCHLD;
  long pid = ::syscall(SYS_clone3, &arguments, sizeof arguments);
  if (pid == 0) ::_exit(0);
  if (pid > 0) ::waitpid(static_cast<pid_t>(pid), nullptr, 0);
  return judge("clone3 user", pid);
}

// The whole road: a user namespace of its own, root in it, and then a mount.
Outcome nested_root(const Args&) {
  if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return judge("unshare", -1);
  spill("/proc/self/setgroups", "deny");
  spill("/proc/self/uid_map", "0 0 1");
  return judge("mount in a nested user namespace", ::syscall(SYS_mount, "isola", "/tmp", "tmpfs", 0, nullptr));
}

Outcome enter_others(const Args&) {
  Attempts attempts;
  for (const char* kind : {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"}) {
    std::string path = fmt::format("/proc/1/ns/{}", kind);
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
      attempts.add("open " + path, -1);
      continue;
    }
    attempts.add(fmt::format("setns {}", kind), ::setns(fd, 0));
    ::close(fd);
  }
  int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, 1, 0));
  if (pidfd >= 0) attempts.add("setns by pidfd", ::setns(pidfd, CLONE_NEWNET | CLONE_NEWIPC));
  return attempts.outcome();
}

// NS_GET_PARENT and NS_GET_USERNS open namespaces that stand above ours.
Outcome parent_namespace(const Args&) {
  Attempts attempts;
  constexpr unsigned long kGetUserns = 0xb701, kGetParent = 0xb702;
  for (const char* kind : {"user", "pid", "net", "mnt"}) {
    int fd = ::open(fmt::format("/proc/self/ns/{}", kind).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    if (std::string_view(kind) == "user" || std::string_view(kind) == "pid")
      attempts.add(fmt::format("parent of {}", kind), ::syscall(SYS_ioctl, fd, kGetParent));
    if (std::string_view(kind) == "net") {
      long owner = ::syscall(SYS_ioctl, fd, kGetUserns);
      attempts.add("set the owner of net", owner < 0 ? -1 : ::setns(static_cast<int>(owner), CLONE_NEWUSER));
    }
    ::close(fd);
  }
  return attempts.outcome();
}

Outcome unmapped_ids(const Args&) {
  Attempts attempts;
  for (unsigned id : {70000u, 1000000000u, 4294967294u}) {
    Outcome one = in_child([id] { return judge(fmt::format("setuid {}", id), ::syscall(SYS_setuid, id)); });
    if (one.kind == Outcome::breach)
      attempts.worked(one.how);
    else
      attempts.refused("setuid", one.how);
    std::string path = work_dir() + "/isola-chown";
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    attempts.add(fmt::format("chown {}", id), ::fchown(fd, id, id));
    ::close(fd);
    ::unlink(path.c_str());
  }
  return attempts.outcome();
}

Outcome rewrite_maps(const Args&) {
  Attempts attempts;
  for (const char* path : {"/proc/self/uid_map", "/proc/self/gid_map", "/proc/1/uid_map"})
    attempts.add(fmt::format("write {}", path), spill(path, "0 0 4294967295\n"));
  return attempts.outcome();
}

constexpr Program kNamespacePrograms[] = {
    {"unshare-each", "namespaces", "makes new mount, pid, net, ipc, uts, cgroup and time namespaces", "EPERM",
     unshare_each},
    {"unshare-user", "namespaces", "makes a user namespace by unshare", "EPERM", unshare_user, Expect::contained,
     kControlPivot},
    {"clone-user", "namespaces", "makes user and other namespaces by clone, also with garbage in the upper bits",
     "EPERM", clone_user, Expect::contained, kControlPivot},
    {"clone3-user", "namespaces", "makes a user namespace by clone3, whose flags no filter sees", "ENOSYS", clone3_user,
     Expect::contained, kControlPivot},
    {"nested-root", "namespaces", "becomes root of a nested user namespace and mounts there", "EPERM", nested_root,
     Expect::contained, kControlPivot},
    {"setns-init", "namespaces", "enters the namespaces of process 1", "EPERM or EACCES", enter_others},
    {"parent-namespace", "namespaces", "opens the namespaces above its own", "EPERM", parent_namespace,
     Expect::contained, 0, "",
     "the kernel refuses everybody who is in a pid namespace of its own, and the first user namespace has no parent"},
    {"unmapped-ids", "namespaces", "becomes, and gives files to, ids outside of its range", "EINVAL", unmapped_ids},
    {"rewrite-maps", "namespaces", "writes its id maps again", "EPERM", rewrite_maps, Expect::contained, 0, "",
     "the machine's own user namespace has fixed maps too: the kernel refuses everybody"},
};

}  // namespace

Family namespace_programs() { return kNamespacePrograms; }

}  // namespace isola::hostile
