// Writes to /proc and /sys. Every one writes back what it has read, so that nothing changes where it is allowed.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

Outcome write_all(std::initializer_list<const char*> paths) {
  Attempts attempts;
  for (const char* path : paths) attempts.add(fmt::format("write {}", path), write_back(path));
  return attempts.outcome();
}

// "h" prints the help text into the kernel's log.
Outcome sysrq(const Args&) { return judge("write sysrq-trigger", spill("/proc/sysrq-trigger", "h")); }
Outcome core_pattern(const Args&) {
  return write_all({"/proc/sys/kernel/core_pattern", "/proc/sys/kernel/core_pipe_limit"});
}
// With a limit of 1 the kernel starts no core handler for whoever crashes here; with 0, or more, it does.
Outcome core_limit(const Args&) {
  Attempts attempts;
  auto look = [&](const char* how) {
    rlimit now{};
    if (::getrlimit(RLIMIT_CORE, &now) == 0 && now.rlim_cur == 1)
      attempts.refused(how, "it is still 1");
    else
      attempts.worked(how);
  };
  rlimit none{0, 0}, before{};
  (void)::syscall(SYS_setrlimit, RLIMIT_CORE, &none);
  look("setrlimit");
  (void)::syscall(SYS_prlimit64, 0, RLIMIT_CORE, &none, nullptr);
  look("prlimit64");
  (void)::syscall(SYS_prlimit64, ::getpid(), RLIMIT_CORE | (1ULL << 32), &none, &before);
  look("prlimit64 of its own number, asking for the value before");
  return attempts.outcome();
}
Outcome modprobe(const Args&) {
  return write_all({"/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/poweroff_cmd"});
}

Outcome sysctls(const Args&) {
  return write_all({"/proc/sys/vm/overcommit_memory", "/proc/sys/vm/swappiness", "/proc/sys/vm/panic_on_oom",
                    "/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", "/proc/sys/kernel/printk",
                    "/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max", "/proc/sys/fs/file-max",
                    "/proc/sys/fs/protected_symlinks", "/proc/sys/fs/suid_dumpable",
                    "/proc/sys/kernel/randomize_va_space"});
}

// Own namespaces' sysctls are writable by the namespace's root unless /proc/sys is read-only: redirects hang on them.
Outcome net_sysctls(const Args&) {
  return write_all({"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/all/route_localnet",
                    "/proc/sys/net/ipv4/conf/lo/rp_filter", "/proc/sys/net/ipv6/conf/all/forwarding",
                    "/proc/sys/net/ipv4/ping_group_range", "/proc/sys/net/ipv4/ip_unprivileged_port_start"});
}

// A trigger makes the kernel watch the whole machine's load for whoever holds it: memory and work that nobody counts.
Outcome pressure(const Args&) {
  Attempts attempts;
  for (const char* path : {"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io"}) {
    attempts.add(fmt::format("read {}", path), ::access(path, R_OK) == 0 ? 0 : -1);
    attempts.add(fmt::format("a trigger on {}", path), spill(path, "some 500000 2000000\n"));
  }
  return attempts.outcome();
}
Outcome irq_affinity(const Args&) { return write_all({"/proc/irq/default_smp_affinity"}); }
Outcome uevent_helper(const Args&) { return write_all({"/sys/kernel/uevent_helper"}); }

// Only files for which the same value again means nothing: not power/state, not profiling.
Outcome sys_writes(const Args&) {
  return write_all({"/sys/kernel/mm/transparent_hugepage/enabled", "/sys/kernel/mm/ksm/run",
                    "/sys/kernel/rcu_expedited", "/sys/module/printk/parameters/time", "/sys/power/pm_async",
                    "/sys/block/vda/queue/read_ahead_kb", "/sys/fs/cgroup/cgroup.procs",
                    "/sys/devices/system/cpu/cpu0/online", "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"});
}

// A process that cannot be chosen by the out-of-memory killer leaves the host's own to be chosen.
Outcome oom_score(const Args&) {
  auto now = slurp("/proc/self/oom_score_adj");
  if (!now) return judge("read oom_score_adj", -1);
  // Below what an ordinary process of the host has: going back from a raised score to that harms nobody.
  int lower = std::min(::atoi(now->c_str()), 0) - 1;
  if (lower < -1000) return untried("already at -1000");
  return judge(fmt::format("oom_score_adj {}", lower), spill("/proc/self/oom_score_adj", fmt::format("{}", lower)));
}

// CVE-2025-31133: masks are bind mounts of /dev/null; replace it (or /dev/pts/0, /dev/console) before the next start.
// Replacing it inside is allowed or not; what counts is that the mask over a path stays what it was.
Outcome replace_dev_null(const Args&) {
  struct stat before{}, after{};
  int first = ::stat("/proc/kcore", &before);
  bool replaced =
      ::rename("/dev/null", "/dev/null.was") == 0 && ::symlink("/proc/sys/kernel/core_pattern", "/dev/null") == 0;
  int why = errno;
  bool reached =
      replaced && write_back("/dev/null") == 0;  // through our own link: must be as refused as the file itself
  int second = ::stat("/proc/kcore", &after);
  bool moved = first != second || before.st_ino != after.st_ino || before.st_rdev != after.st_rdev;
  if (replaced) {
    ::unlink("/dev/null");
    ::rename("/dev/null.was", "/dev/null");
  }
  if (reached) return breach("core_pattern was written through a replaced /dev/null");
  if (moved) return breach("a mask changed with /dev/null");
  return contained(replaced ? "/dev/null is our own; no mask moved, nothing reached"
                            : "replace /dev/null: " + errno_name(why));
}

// The kernel shows the ranges of iomem and ioports to everybody, but as zeros to those without rights.
bool only_zero_addresses(const std::string& text) {
  size_t ranges = 0;
  for (size_t at = 0; at < text.size();) {
    unsigned long long from = 0, to = 0;
    if (::sscanf(text.c_str() + at, " %llx-%llx :", &from, &to) != 2 || from != 0 || to != 0) return false;
    ++ranges;
    size_t end = text.find('\n', at);
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return ranges > 0;
}

Outcome masked_reads(const Args&) {
  Attempts attempts;
  for (const char* path :
       {"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/latency_stats", "/proc/sched_debug", "/proc/kallsyms",
        "/proc/kpagecount", "/proc/iomem", "/proc/ioports", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/interrupts",
        "/sys/firmware/memmap/0/start", "/sys/kernel/notes", "/sys/kernel/vmcoreinfo", "/proc/config.gz"}) {
    auto text = slurp(path);
    if (!text)
      attempts.add(path, -1);
    else if (text->empty())
      attempts.refused(path, "empty");
    else if (only_zero_addresses(*text))
      attempts.refused(path, "addresses are zero");
    else
      attempts.worked(path);
  }
  return attempts.outcome();
}

constexpr Program kProcfsPrograms[] = {
    {"sysrq", "procfs", "writes to /proc/sysrq-trigger", "read-only, masked or not there", sysrq, Expect::contained,
     kControlMayLack},
    {"core-pattern", "procfs", "writes kernel.core_pattern, the road to a host process", "EROFS or EACCES",
     core_pattern},
    {"core-limit", "procfs", "changes its limit of core files, which keeps the host's core handler from running",
     "it stays 1", core_limit},
    {"modprobe-path", "procfs", "writes the paths of the programs that the kernel starts as root", "EROFS or EACCES",
     modprobe},
    {"sysctl-host", "procfs", "writes the machine's sysctls (vm, kernel, fs)", "EROFS or EACCES", sysctls},
    {"sysctl-net", "procfs", "writes its own network namespace's sysctls", "EROFS", net_sysctls},
    {"pressure", "procfs", "reads the machine's pressure and sets triggers on it", "not there", pressure},
    {"irq-affinity", "procfs", "writes /proc/irq", "EROFS, EACCES or not there", irq_affinity},
    {"uevent-helper", "procfs", "writes the kernel's uevent helper", "EROFS, EACCES or not there", uevent_helper,
     Expect::contained, kControlMayLack},
    {"sys-writes", "procfs", "writes to /sys: memory, power, block queues, cpus", "EROFS, EACCES or not there",
     sys_writes},
    {"oom-score", "procfs", "lowers its own oom_score_adj", "EACCES", oom_score, Expect::contained,
     kControlSysResource},
    {"replace-dev-null", "procfs", "replaces /dev/null, of which masks are made (CVE-2025-31133)", "masks do not move",
     replace_dev_null},
    {"masked-reads", "procfs", "reads kernel memory layout and keys from /proc and /sys", "masked: empty or refused",
     masked_reads},
};

}  // namespace

Family procfs_programs() { return kProcfsPrograms; }

}  // namespace isola::hostile
