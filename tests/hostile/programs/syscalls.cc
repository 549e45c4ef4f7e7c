// Other doors into the same kernel: a filter that looks at one of them only is open.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// The 32-bit table: its numbers mean other calls. 20 is getpid there (writev in the 64-bit table).
Outcome int80(const Args&) {
  return in_child([] {
    long result = 20;
    asm volatile("int $0x80" : "+a"(result) : "b"(0), "c"(0), "d"(0) : "memory", "r8", "r9", "r10", "r11");
    if (result > 0) return breach("the 32-bit system calls are reachable");
    return contained(fmt::format("int 0x80: {}", errno_name(static_cast<int>(-result))));
  });
}

Outcome x32(const Args&) {
  return in_child([] { return judge("x32 getpid", ::syscall(0x40000000L + SYS_getpid)); });
}

// The kernel looks at the lower half of the number only.
Outcome garbage_number(const Args&) {
  return in_child([] {
    long result = static_cast<long>(0xdeadbeef00000000UL | SYS_unshare);
    asm volatile("syscall" : "+a"(result) : "D"(CLONE_NEWUTS) : "memory", "rcx", "r11");
    errno = static_cast<int>(-result);
    return judge("unshare with garbage above the number", result < 0 ? -1 : 0);
  });
}

// ioctl takes an unsigned int as its request.
Outcome garbage_ioctl(const Args&) {
  int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0) return untried("no terminal: " + errno_name(errno));
  ::grantpt(master);
  ::unlockpt(master);
  std::string name = ::ptsname(master) ? ::ptsname(master) : "";
  return in_child([&] {
    ::setsid();
    int tty = ::open(name.c_str(), O_RDWR);
    if (tty < 0) return untried("open terminal: " + errno_name(errno));
    ::ioctl(tty, TIOCSCTTY, 0);
    char byte = 'x';
    return judge("TIOCSTI with garbage above it", ::syscall(SYS_ioctl, tty, 0x500000000L | TIOCSTI, &byte));
  });
}

// Maps everything readable as executable too, from the next exec on.
Outcome read_implies_exec(const Args&) {
  Attempts attempts;
  attempts.add("READ_IMPLIES_EXEC", ::personality(READ_IMPLIES_EXEC));
  attempts.add("32-bit address layout", ::personality(static_cast<unsigned long>(ADDR_COMPAT_LAYOUT)));
  return attempts.outcome();
}

// Nothing takes a filter away again; what can be tried is a strict mode over it, and clearing "no new privileges".
Outcome drop_filter(const Args&) {
  Attempts attempts;
  auto status = slurp("/proc/self/status");
  bool filtered = status && status->find("Seccomp:\t2") != std::string::npos;
  if (!filtered) attempts.worked("no filter is installed");
  attempts.refused("Seccomp", filtered ? "2" : "0");
  long disabled = ::syscall(SYS_seccomp, 0xffff, 0, nullptr);
  attempts.add("seccomp with an unknown operation", disabled);
  return attempts.outcome();
}

// A listener keeps its filter after the process that installed it: a few children leave a few descriptors here, each
// with a program in the pool that the whole machine shares.
Outcome filter_listeners(const Args& args) {
  sock_filter all{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
  sock_fprog program{1, &all};
  Attempts attempts;
  for (unsigned long flags : {0x8UL, 0x500000008UL}) {
    long got = 0;
    std::string refused;
    for (long i = 0; i < args.number(0, 4); ++i) {
      auto one = in_child([&] {
        ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        return judge("a listener", ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
      });
      if (one.kind == Outcome::breach)
        ++got;
      else
        refused = one.how;
    }
    if (got > 0)
      attempts.worked(fmt::format("{} listeners (flags {:#x})", got, flags));
    else
      attempts.refused(fmt::format("flags {:#x}", flags), refused);
  }
  return attempts.outcome();
}

constexpr Program kSyscallPrograms[] = {
    {"int80", "seccomp", "makes 32-bit system calls by int 0x80", "ENOSYS, EPERM or killed", int80, Expect::contained,
     kControlMayLack},
    {"x32", "seccomp", "makes system calls by x32 numbers", "ENOSYS, EPERM or killed", x32, Expect::contained,
     kControlMayLack},
    {"number-high-bits", "seccomp", "makes a forbidden call with garbage above its number", "EPERM or killed",
     garbage_number},
    {"ioctl-high-bits", "seccomp", "makes a forbidden ioctl with garbage above its number", "EPERM", garbage_ioctl},
    {"personality", "seccomp", "turns on READ_IMPLIES_EXEC and old address layouts", "EPERM", read_implies_exec},
    {"no-filter", "seccomp", "looks whether a filter is installed at all", "Seccomp: 2", drop_filter},
    {"filter-listeners", "seccomp", "installs filters that outlive their processes, in a pool of the whole machine",
     "EINVAL", filter_listeners},
};

}  // namespace

Family syscall_programs() { return kSyscallPrograms; }

}  // namespace isola::hostile
