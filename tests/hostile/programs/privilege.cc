// Rights over the machine itself. Where a call would change something, its arguments are bad in a way that the kernel
// looks at only after the permission: any other errno than "not permitted" is then the breach.
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// Permitted when it worked, or failed for a reason that comes after the permission.
Outcome past_permission(std::string_view what, long result) {
  if (result < 0 && errno != EPERM && errno != EACCES && errno != ENOSYS)
    return breach(fmt::format("{}: permitted ({})", what, errno_name(errno)));
  return judge(what, result);
}

Outcome set_time(const Args&) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  Attempts attempts;
  attempts.add("clock_settime", ::clock_settime(CLOCK_REALTIME, &now));
  timeval again{};
  ::gettimeofday(&again, nullptr);
  attempts.add("settimeofday", ::settimeofday(&again, nullptr));
  return attempts.outcome();
}

Outcome nice_below(const Args&) {
  errno = 0;
  int now = ::getpriority(PRIO_PROCESS, 0);
  Attempts attempts;
  attempts.add("nice -1", ::setpriority(PRIO_PROCESS, 0, now - 1));
  sched_param realtime{.sched_priority = 1};
  attempts.add("SCHED_FIFO", ::sched_setscheduler(0, SCHED_FIFO, &realtime));
  attempts.add("ioprio real time", ::syscall(SYS_ioprio_set, 1, 0, 1 << 13));
  return attempts.outcome();
}

Outcome raise_rlimit(const Args&) {
  Attempts attempts;
  for (auto which : {RLIMIT_NOFILE, RLIMIT_CORE, RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE}) {
    rlimit lower{.rlim_cur = 16, .rlim_max = 16}, higher{.rlim_cur = 32, .rlim_max = 32};
    if (::setrlimit(which, &lower) != 0) continue;
    // By what it is afterwards: whoever is told that it worked may have been told a tale.
    int said = ::setrlimit(which, &higher);
    rlimit now{};
    std::string what = fmt::format("raise hard limit {}", static_cast<int>(which));
    if (said == 0 && ::getrlimit(which, &now) == 0 && now.rlim_max != higher.rlim_max)
      attempts.refused(what, "it stays as it was");
    else
      attempts.add(what, said);
  }
  return attempts.outcome();
}

// Its own name is a sandbox's to change where it may; the machine's is not.
Outcome host_name(const Args&) {
  char name[65] = {};
  ::gethostname(name, 64);
  long changed = ::sethostname(name, ::strlen(name));
  if (changed == 0 && !in_first_user_namespace()) return contained("only the name of its own namespace");
  return judge("sethostname", changed);
}

Outcome lock_memory(const Args&) {
  rlimit small{.rlim_cur = 65536, .rlim_max = 65536};
  ::setrlimit(RLIMIT_MEMLOCK, &small);
  void* memory = ::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Attempts attempts;
  attempts.add("mlock past the limit", ::mlock(memory, 1 << 20));
  attempts.add("mlock2 past the limit", ::mlock2(memory, 1 << 20, 0));
  return attempts.outcome();
}

Outcome reboot(const Args&) { return past_permission("reboot", ::syscall(SYS_reboot, 0, 0, 0, nullptr)); }

Outcome kexec(const Args&) {
  Outcome old = past_permission("kexec_load", ::syscall(SYS_kexec_load, 0, 0, nullptr, 0xffffUL));
  if (old.kind == Outcome::breach) return old;
  return past_permission("kexec_file_load", ::syscall(SYS_kexec_file_load, -1, -1, 0, nullptr, 0xffffUL));
}

Outcome load_module(const Args&) {
  Outcome old = past_permission("init_module", ::syscall(SYS_init_module, nullptr, 0, ""));
  if (old.kind == Outcome::breach) return old;
  Outcome by_file = past_permission("finit_module", ::syscall(SYS_finit_module, -1, "", 0));
  if (by_file.kind == Outcome::breach) return by_file;
  return past_permission("delete_module", ::syscall(SYS_delete_module, "isola-no-such-module", O_NONBLOCK));
}

Outcome swap_on(const Args&) {
  Outcome on = past_permission("swapon", ::syscall(SYS_swapon, "/isola/no/such/file", 0));
  return on.kind == Outcome::breach ? on : past_permission("swapoff", ::syscall(SYS_swapoff, "/isola/no/such/file"));
}

Outcome kernel_log(const Args&) {
  char text[256];
  Attempts attempts;
  attempts.add("syslog size", ::syscall(SYS_syslog, 10, nullptr, 0));
  attempts.add("syslog read", ::syscall(SYS_syslog, 3, text, sizeof text));
  return attempts.outcome();
}

Outcome accounting(const Args&) { return past_permission("acct", ::syscall(SYS_acct, "/isola/no/such/file")); }

Outcome io_ports(const Args&) {
  Attempts attempts;
  attempts.add("ioperm", ::ioperm(0x80, 1, 1));
  attempts.add("iopl", ::iopl(3));
  return attempts.outcome();
}

// A descriptor table of its own reaches nobody else, but is old and intricate kernel code.
Outcome local_descriptors(const Args&) {
  char table[64];
  return judge("modify_ldt", ::syscall(SYS_modify_ldt, 0, table, sizeof table));
}

// Rights that would count outside: in the machine's own user namespace any of these is the machine.
Outcome capabilities(const Args&) {
  auto status = slurp("/proc/self/status");
  unsigned long long effective = 0, bounding = 0;
  for (auto [key, value] : {std::pair{"CapEff:", &effective}, std::pair{"CapBnd:", &bounding}}) {
    size_t at = status ? status->find(key) : std::string::npos;
    if (at == std::string::npos || ::sscanf(status->c_str() + at + 7, "%llx", value) != 1)
      return untried("no capabilities in /proc/self/status");
  }
  Attempts attempts;
  if (in_first_user_namespace()) attempts.worked("root is the machine's root");
  struct {
    int number;
    const char* name;
  } forbidden[] = {{CAP_SYS_ADMIN, "sys_admin"},
                   {CAP_SYS_MODULE, "sys_module"},
                   {CAP_SYS_RAWIO, "sys_rawio"},
                   {CAP_SYS_PTRACE, "sys_ptrace"},
                   {CAP_SYS_BOOT, "sys_boot"},
                   {CAP_SYS_TIME, "sys_time"},
                   {CAP_NET_ADMIN, "net_admin"},
                   {CAP_NET_RAW, "net_raw"},
                   {CAP_DAC_READ_SEARCH, "dac_read_search"},
                   {CAP_MKNOD, "mknod"},
                   {CAP_SYSLOG, "syslog"},
                   {CAP_MAC_ADMIN, "mac_admin"},
                   {CAP_PERFMON, "perfmon"},
                   {CAP_BPF, "bpf"},
                   {CAP_CHECKPOINT_RESTORE, "checkpoint_restore"},
                   {CAP_SYS_RESOURCE, "sys_resource"},
                   {CAP_LINUX_IMMUTABLE, "linux_immutable"},
                   {CAP_AUDIT_CONTROL, "audit_control"},
                   {CAP_WAKE_ALARM, "wake_alarm"}};
  for (auto [number, name] : forbidden) {
    if (((effective | bounding) >> number) & 1) attempts.worked(name);
  }
  attempts.refused("capabilities", fmt::format("effective {:x}, bounding {:x}", effective, bounding));
  return attempts.outcome();
}

// A setuid-root file gives its reader the sandbox's root at most: an ordinary user runs one, and looks who it is.
Outcome setuid_root(const Args&) {
  std::string copy = work_dir() + "/isola-setuid";
  int from = ::open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  int to = ::open(copy.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
  if (from < 0 || to < 0) return untried("copy itself: " + errno_name(errno));
  char block[65536];
  for (ssize_t n; (n = ::read(from, block, sizeof block)) > 0;) {
    if (::write(to, block, static_cast<size_t>(n)) != n) return untried("copy itself: " + errno_name(errno));
  }
  ::fchown(to, 0, 0) == 0 && ::fchmod(to, 04755) == 0 ? void() : void();
  ::close(from);
  ::close(to);
  pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(1000) != 0 || ::setuid(1000) != 0) ::_exit(Outcome::untried);
    ::execl(copy.c_str(), copy.c_str(), "who-am-i", nullptr);
    ::_exit(Outcome::contained);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::unlink(copy.c_str());
  if (!WIFEXITED(status)) return untried("the setuid program died");
  if (WEXITSTATUS(status) == Outcome::breach) return breach("the setuid program became the machine's root");
  if (WEXITSTATUS(status) == Outcome::untried) return untried("there is no user 1000");
  return contained("root of the sandbox at most");
}

// Root, and the machine's root: helper of setuid-root.
Outcome who_am_i(const Args&) {
  if (::geteuid() == 0 && in_first_user_namespace()) return breach("the machine's root");
  return contained(fmt::format("euid {}", ::geteuid()));
}

constexpr Program kPrivilegePrograms[] = {
    {"capabilities", "privilege", "looks for capabilities that reach the kernel's administration",
     "none, and root is mapped to another id", capabilities},
    {"setuid-root", "privilege", "becomes root through a setuid file and looks whose root that is",
     "the sandbox's own root", setuid_root},
    {"who-am-i", "privilege", "checks whether its root is the machine's root", "mapped to another id", who_am_i},
    {"set-time", "privilege", "sets the clock (to the time it has)", "EPERM", set_time},
    {"nice-below", "privilege", "raises its priority: nice, real-time scheduling and I/O", "EPERM or EACCES",
     nice_below},
    {"raise-rlimit", "privilege", "raises a hard resource limit", "EPERM", raise_rlimit, Expect::contained,
     kControlSysResource},
    {"host-name", "privilege", "sets the host name (to the name it has)", "EPERM, or only its own", host_name},
    {"lock-memory", "privilege", "locks memory past its limit", "ENOMEM or EPERM", lock_memory},
    {"reboot", "privilege", "asks for a reboot with bad magic numbers", "EPERM", reboot},
    {"kexec", "privilege", "loads a new kernel (none)", "EPERM", kexec, Expect::contained, kControlMayLack},
    {"module-load", "privilege", "loads a kernel module (none)", "EPERM", load_module, Expect::contained,
     kControlMayLack},
    {"swap-on", "privilege", "adds and removes swap space (none)", "EPERM", swap_on},
    {"kernel-log", "privilege", "reads the kernel's log by syslog(2)", "EPERM", kernel_log},
    {"accounting", "privilege", "turns process accounting on (nowhere)", "EPERM or ENOSYS", accounting,
     Expect::contained, kControlMayLack},
    {"io-ports", "privilege", "gets access to I/O ports", "EPERM", io_ports, Expect::contained, kControlMayLack},
    {"modify-ldt", "kernel", "reads its local descriptor table", "EPERM or ENOSYS", local_descriptors,
     Expect::contained, kControlMayLack},
};

}  // namespace

Family privilege_programs() { return kPrivilegePrograms; }

}  // namespace isola::hostile
