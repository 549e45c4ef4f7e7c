// Control groups: the classic escape through release_agent, and lifting one's own limits.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

std::string cgroup_dir() {
  std::string path = work_dir() + "/isola-cg";
  ::mkdir(path.c_str(), 0755);
  return path;
}

// A hierarchy of its own, and in it the agent that the kernel starts as the machine's root. It is read and written
// back, never set.
Outcome release_agent(const Args&) {
  Attempts attempts;
  std::string at = cgroup_dir();
  for (const char* controller : {"memory", "pids", "devices", "cpuset", "none,name=systemd"}) {
    long mounted = ::syscall(SYS_mount, "cgroup", at.c_str(), "cgroup", 0, controller);
    attempts.add(fmt::format("mount cgroup {}", controller), mounted);
    if (mounted < 0) continue;
    attempts.add("write release_agent", write_back(at + "/release_agent"));
    ::syscall(SYS_umount2, at.c_str(), 2);
    break;
  }
  return attempts.outcome();
}

Outcome mount_v2(const Args&) {
  std::string at = cgroup_dir();
  long mounted = ::syscall(SYS_mount, "cgroup2", at.c_str(), "cgroup2", 0, nullptr);
  Outcome outcome = judge("mount cgroup2", mounted);
  if (mounted == 0) ::syscall(SYS_umount2, at.c_str(), 2);
  return outcome;
}

// Every limit file that can be seen, written back as it is.
Outcome own_limits(const Args&) {
  Attempts attempts;
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/cpu.max",
                           "/sys/fs/cgroup/cgroup.subtree_control", "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                           "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
                           "/sys/fs/cgroup/memory/notify_on_release", "/sys/fs/cgroup/release_agent",
                           "/sys/fs/cgroup/memory/release_agent"}) {
    attempts.add(fmt::format("write {}", path), write_back(path));
  }
  return attempts.outcome();
}

// Leaving the group is leaving its limits: into the parent, or a new child.
Outcome leave_group(const Args&) {
  Attempts attempts;
  for (const char* path :
       {"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/../cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs",
        "/sys/fs/cgroup/pids/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"}) {
    int fd = ::open(path, O_WRONLY | O_CLOEXEC);
    attempts.add(fmt::format("open {}", path), fd);
    if (fd >= 0) ::close(fd);
  }
  for (const char* path :
       {"/sys/fs/cgroup/isola-child", "/sys/fs/cgroup/memory/isola-child", "/sys/fs/cgroup/pids/isola-child"}) {
    attempts.add(fmt::format("mkdir {}", path), ::mkdir(path, 0755));
    ::rmdir(path);
  }
  return attempts.outcome();
}

constexpr Program kCgroupPrograms[] = {
    {"release-agent", "cgroups", "mounts a v1 hierarchy and writes its release_agent", "mount: EPERM", release_agent},
    {"mount-cgroup2", "cgroups", "mounts the unified hierarchy", "mount: EPERM", mount_v2},
    {"own-limits", "cgroups", "writes the limits of its own group", "not there, or EROFS or EACCES", own_limits,
     Expect::contained, kControlRealCgroups},
    {"leave-cgroup", "cgroups", "moves to another group or makes one", "not there, or EROFS or EACCES", leave_group,
     Expect::contained, kControlRealCgroups},
};

}  // namespace

Family cgroup_programs() { return kCgroupPrograms; }

}  // namespace isola::hostile
