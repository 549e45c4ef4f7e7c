// The mount family: with any one of these a root can rearrange what it sees, and take masks away.
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

// glibc's <sys/mount.h> and <linux/mount.h> exclude each other here: the few calls go by number.
namespace isola::hostile {
namespace {

constexpr unsigned long kRemount = 32, kBind = 4096, kMove = 8192;

long mount(const char* source, const char* target, const char* type, unsigned long flags) {
  return ::syscall(SYS_mount, source, target, type, flags, nullptr);
}

std::string fresh_dir(const char* name) {
  std::string path = work_dir() + "/" + name;
  ::mkdir(path.c_str(), 0755);
  return path;
}

Outcome mount_tmpfs(const Args&) {
  return judge("mount tmpfs", mount("isola", fresh_dir("m-tmpfs").c_str(), "tmpfs", 0));
}
Outcome mount_bind(const Args&) { return judge("bind mount", mount("/", fresh_dir("m-bind").c_str(), nullptr, kBind)); }

Outcome mount_move(const Args&) {
  Attempts attempts;
  for (const char* from : {"/proc/sys", "/dev/shm", "/dev/pts", "/proc"})
    attempts.add(fmt::format("move {}", from), mount(from, fresh_dir("m-move").c_str(), nullptr, kMove));
  return attempts.outcome();
}

// A procfs of its own has no masks. Refused by the kernel too, while the visible one is covered in places.
Outcome mount_proc(const Args&) { return judge("mount proc", mount("proc", fresh_dir("m-proc").c_str(), "proc", 0)); }
Outcome mount_sysfs(const Args&) {
  return judge("mount sysfs", mount("sysfs", fresh_dir("m-sys").c_str(), "sysfs", 0));
}

Outcome mount_debugfs(const Args&) {
  Attempts attempts;
  for (const char* type : {"debugfs", "tracefs", "securityfs", "bpf", "binfmt_misc"})
    attempts.add(fmt::format("mount {}", type), mount(type, fresh_dir("m-debug").c_str(), type, 0));
  return attempts.outcome();
}

// No flags: devtmpfs has one superblock for all, and flags given here would reach the machine's own /dev.
Outcome mount_devtmpfs(const Args&) {
  return judge("mount devtmpfs", mount("dev", fresh_dir("m-dev").c_str(), "devtmpfs", 0));
}

Outcome new_mount_api(const Args&) {
  Attempts attempts;
  long context = ::syscall(SYS_fsopen, "tmpfs", 0);
  attempts.add("fsopen", context);
  if (context >= 0) {
    ::syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
    attempts.add("fsmount", ::syscall(SYS_fsmount, context, 0, 0));
  }
  return attempts.outcome();
}

Outcome open_tree(const Args&) {
  Attempts attempts;
  long tree = ::syscall(SYS_open_tree, AT_FDCWD, "/", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
  attempts.add("open_tree clone", tree);
  if (tree >= 0)
    attempts.add("move_mount",
                 ::syscall(SYS_move_mount, tree, "", AT_FDCWD, fresh_dir("m-tree").c_str(), MOVE_MOUNT_F_EMPTY_PATH));
  return attempts.outcome();
}

Outcome mount_setattr_rw(const Args&) {
  Attempts attempts;
  mount_attr attr{};
  attr.attr_clr = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
  for (const char* path : {"/", "/proc", "/proc/sys", "/sys", "/isola-hostile"})
    attempts.add(fmt::format("mount_setattr {}", path),
                 ::syscall(SYS_mount_setattr, AT_FDCWD, path, 0, &attr, sizeof attr));
  return attempts.outcome();
}

// Without a filter or missing privilege the kernel goes on to look at the folders: EINVAL, EBUSY say that it may.
Outcome pivot_root(const Args&) {
  std::string root = fresh_dir("m-pivot");
  mount(root.c_str(), root.c_str(), nullptr, kBind);
  std::string old = root + "/old";
  ::mkdir(old.c_str(), 0755);
  long result = ::syscall(SYS_pivot_root, root.c_str(), old.c_str());
  if (result < 0 && (errno == EINVAL || errno == EBUSY || errno == ENOTDIR))
    return breach("pivot_root: permitted, refused only for the folders");
  return judge("pivot_root", result);
}

Outcome umount_masks(const Args&) {
  Attempts attempts;
  for (const char* path : {"/proc/sys", "/proc/kcore", "/proc/keys", "/proc/sysrq-trigger", "/proc/timer_list",
                           "/sys/firmware", "/sys", "/dev/shm", "/isola-hostile"})
    attempts.add(fmt::format("umount {}", path), ::syscall(SYS_umount2, path, 2 /* MNT_DETACH */));
  return attempts.outcome();
}

Outcome remount_rw(const Args&) {
  Attempts attempts;
  for (const char* path : {"/", "/proc", "/proc/sys", "/sys", "/dev", "/isola-hostile"}) {
    attempts.add(fmt::format("remount {} rw", path), mount(nullptr, path, nullptr, kRemount | kBind));
  }
  return attempts.outcome();
}

constexpr Program kMountPrograms[] = {
    {"mount-tmpfs", "mounts", "mounts a tmpfs", "EPERM", mount_tmpfs},
    {"mount-bind", "mounts", "bind-mounts its root elsewhere", "EPERM", mount_bind},
    {"mount-move", "mounts", "moves the mounts of /proc/sys, /dev/shm and others away", "EPERM", mount_move},
    {"mount-proc", "mounts", "mounts a procfs of its own, without masks", "EPERM", mount_proc},
    {"mount-sysfs", "mounts", "mounts a sysfs of its own, without masks", "EPERM", mount_sysfs},
    {"mount-debugfs", "mounts", "mounts debugfs, tracefs, securityfs, bpf, binfmt_misc", "EPERM", mount_debugfs},
    {"mount-devtmpfs", "mounts", "mounts the host's devices", "EPERM", mount_devtmpfs},
    {"mount-new-api", "mounts", "makes a mount with fsopen and fsmount", "EPERM or ENOSYS", new_mount_api},
    {"mount-open-tree", "mounts", "clones its root with open_tree and moves it", "EPERM or ENOSYS", open_tree},
    {"mount-setattr", "mounts", "clears read-only with mount_setattr", "EPERM or ENOSYS", mount_setattr_rw},
    {"pivot-root", "mounts", "changes its root with pivot_root", "EPERM", pivot_root},
    {"umount-masks", "mounts", "unmounts the masks over /proc and /sys", "EPERM", umount_masks},
    {"remount-rw", "mounts", "remounts /proc/sys, /sys, /dev and / writable", "EPERM", remount_rw},
};

}  // namespace

Family mount_programs() { return kMountPrograms; }

}  // namespace isola::hostile
