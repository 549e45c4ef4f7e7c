// The jail's filter, rule by rule, by evaluating it; and once for real.
#include "boundary/jail/syscall_policy.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "kernel/bpf_evaluator.h"

namespace isola::boundary {
namespace {

constexpr int kAllowed = -1;  // else the errno

const kernel::SeccompProgram& program() {
  static const auto p = jail_syscall_program();
  if (!p) std::abort();
  return *p;
}

int answer(int nr, std::initializer_list<uint64_t> args = {}, uint32_t arch = kernel::kNativeArch) {
  seccomp_data call{.nr = nr, .arch = arch};
  std::copy(args.begin(), args.end(), call.args);
  auto value = kernel::evaluate(program().code(), call);
  EXPECT_TRUE(value);
  if (!value) return -3;
  if (*value == SECCOMP_RET_ALLOW) return kAllowed;
  EXPECT_EQ(*value & SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ERRNO);
  return static_cast<int>(*value & SECCOMP_RET_DATA);
}

constexpr uint64_t kGarbage = 0xdeadbeef'00000000ULL;

TEST(SyscallPolicy, NamespacesCannotBeMade) {
  constexpr uint64_t kThread = 0x3d0f00, kFork = 0x1200011;
  EXPECT_EQ(answer(__NR_clone, {kThread}), kAllowed);
  EXPECT_EQ(answer(__NR_clone, {kFork}), kAllowed);
  EXPECT_EQ(answer(__NR_clone, {0x4100 | 17}), kAllowed);  // vfork
  for (uint64_t flag : {0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000}) {
    EXPECT_EQ(answer(__NR_clone, {flag | 17}), EPERM) << flag;
    EXPECT_EQ(answer(__NR_clone, {flag | kGarbage}), EPERM) << flag;  // the kernel cuts the high half off
    EXPECT_EQ(answer(__NR_unshare, {flag}), EPERM) << flag;
    EXPECT_EQ(answer(__NR_unshare, {flag | 0x400}), EPERM) << flag;
  }
  EXPECT_EQ(answer(__NR_unshare, {0x80}), EPERM);      // a time namespace
  EXPECT_EQ(answer(__NR_unshare, {0x400}), kAllowed);  // files
  EXPECT_EQ(answer(__NR_unshare, {0x200}), kAllowed);  // working directory
  EXPECT_EQ(answer(__NR_unshare, {0}), kAllowed);
  EXPECT_EQ(answer(__NR_unshare, {0x400 | kGarbage}), EPERM);  // bits that nobody knows yet
  EXPECT_EQ(answer(__NR_unshare, {0x100000}), EPERM);
  EXPECT_EQ(answer(__NR_clone3), ENOSYS);
  EXPECT_EQ(answer(__NR_setns), EPERM);
}

TEST(SyscallPolicy, SocketsOfKnownKindsOnly) {
  for (int call : {__NR_socket, __NR_socketpair}) {
    constexpr uint64_t kCloexec = 02000000, kNonblock = 04000;
    EXPECT_EQ(answer(call, {AF_UNIX, SOCK_STREAM, 0}), kAllowed);
    EXPECT_EQ(answer(call, {AF_UNIX, SOCK_SEQPACKET | kCloexec, 0}), kAllowed);
    EXPECT_EQ(answer(call, {AF_UNIX | kGarbage, SOCK_DGRAM, 0}), kAllowed);
    for (uint64_t family : {AF_INET, AF_INET6}) {
      EXPECT_EQ(answer(call, {family, SOCK_STREAM, 0}), kAllowed);
      EXPECT_EQ(answer(call, {family, SOCK_STREAM | kCloexec | kNonblock, 6}), kAllowed);
      EXPECT_EQ(answer(call, {family, SOCK_DGRAM | kCloexec, 0}), kAllowed);
      EXPECT_EQ(answer(call, {family, SOCK_DGRAM, 17}), kAllowed);
      EXPECT_EQ(answer(call, {family, SOCK_RAW, 1}), EPERM);
      EXPECT_EQ(answer(call, {family, SOCK_RAW | kCloexec, 255}), EPERM);
      EXPECT_EQ(answer(call, {family | kGarbage, SOCK_RAW | kGarbage, 255}), EPERM);
      EXPECT_EQ(answer(call, {family, SOCK_STREAM, 262}), EPROTONOSUPPORT);  // MPTCP
      EXPECT_EQ(answer(call, {family, SOCK_STREAM, 132}), EPROTONOSUPPORT);  // SCTP
      EXPECT_EQ(answer(call, {family, SOCK_DGRAM, 1}), EPROTONOSUPPORT);     // ping
      EXPECT_EQ(answer(call, {family, SOCK_DGRAM, 136}), EPROTONOSUPPORT);   // UDP-Lite
      EXPECT_EQ(answer(call, {family, SOCK_SEQPACKET, 0}), EPROTONOSUPPORT);
      EXPECT_EQ(answer(call, {family, 10 /* SOCK_PACKET */, 0}), EPROTONOSUPPORT);
    }
    EXPECT_EQ(answer(call, {AF_NETLINK, SOCK_RAW | kCloexec, 0}), kAllowed);  // addresses and routes
    EXPECT_EQ(answer(call, {AF_NETLINK, SOCK_DGRAM, 4}), kAllowed);           // socket lists (ss)
    for (uint64_t protocol : {1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 15, 16, 18, 20, 21, 22})
      EXPECT_EQ(answer(call, {AF_NETLINK, SOCK_RAW, protocol}), EPROTONOSUPPORT) << protocol;
    for (uint64_t family = 0; family < 64; ++family)
      if (family != AF_UNIX && family != AF_INET && family != AF_INET6 && family != AF_NETLINK) {
        EXPECT_EQ(answer(call, {family, SOCK_STREAM, 0}), EAFNOSUPPORT) << family;
        EXPECT_EQ(answer(call, {family | kGarbage, SOCK_RAW, 0}), EAFNOSUPPORT) << family;
      }
  }
}

TEST(SyscallPolicy, NoFiltersOnSockets) {
  for (uint64_t option : {SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF}) {
    EXPECT_EQ(answer(__NR_setsockopt, {3, SOL_SOCKET, option}), EPERM);
    EXPECT_EQ(answer(__NR_setsockopt, {3, SOL_SOCKET | kGarbage, option | kGarbage}), EPERM);
    EXPECT_EQ(answer(__NR_setsockopt, {3, 6 /* TCP */, option}), kAllowed) << "the same number of another level";
  }
  EXPECT_EQ(answer(__NR_setsockopt, {3, SOL_SOCKET, SO_REUSEADDR}), kAllowed);
}

TEST(SyscallPolicy, NobodyTypesIntoTerminals) {
  for (uint64_t command : {0x5412, 0x541c, 0x5423}) {
    EXPECT_EQ(answer(__NR_ioctl, {0, command}), EPERM);
    EXPECT_EQ(answer(__NR_ioctl, {0, command | kGarbage}), EPERM);  // the kernel looks at 32 bits
  }
  for (uint64_t command : {0x5401 /* TCGETS */, 0x5413 /* TIOCGWINSZ */, 0x541b /* FIONREAD */, 0x5411})
    EXPECT_EQ(answer(__NR_ioctl, {0, command}), kAllowed);
  // btrfs: making a subvolume or a snapshot, in both forms, and looking around. Sharing data would count against
  // whoever wrote it.
  for (uint64_t command : {0x5000940eu, 0x50009401u, 0x50009418u, 0x50009417u, 0x5000940fu, 0xd0009411u})
    for (uint64_t high : {uint64_t{0}, kGarbage}) EXPECT_EQ(answer(__NR_ioctl, {0, command | high}), ENOTTY);
  for (uint64_t command : {0x40049409u /* FICLONE */, 0x4020940du /* FICLONERANGE */, 0xc0189436u /* FIDEDUPERANGE */})
    EXPECT_EQ(answer(__NR_ioctl, {0, command}), EOPNOTSUPP);
  EXPECT_EQ(answer(__NR_copy_file_range), ENOSYS);
}

TEST(SyscallPolicy, HarmlessPersonalitiesOnly) {
  for (uint64_t persona : {0x0ULL, 0xffffffffULL, 0x40000ULL, 0x20000ULL, 0x8ULL, 0x20008ULL, 0x40008ULL})
    EXPECT_EQ(answer(__NR_personality, {persona}), kAllowed) << persona;
  for (uint64_t persona : {0x400000ULL /* READ_IMPLIES_EXEC */, 0x100000ULL /* MMAP_PAGE_ZERO */, 0x1ULL, 0x440000ULL})
    EXPECT_EQ(answer(__NR_personality, {persona}), EPERM) << persona;
}

TEST(SyscallPolicy, SyncPretends) {
  EXPECT_EQ(answer(__NR_sync), 0);
  EXPECT_EQ(answer(__NR_syncfs), 0);
}

TEST(SyscallPolicy, OtherArchitecturesDoNotExist) {
  EXPECT_EQ(answer(1, {}, AUDIT_ARCH_I386), ENOSYS);
  EXPECT_EQ(answer(0, {}, AUDIT_ARCH_ARM), ENOSYS);
#if defined(__x86_64__)
  for (int nr : {0x40000000, 0x40000000 | __NR_execve, 0x40000000 | 512}) EXPECT_EQ(answer(nr), ENOSYS);
#endif
}

#if defined(__x86_64__)
// Written down a second time, by number and on purpose: whoever changes the policy has to say so here as well.
TEST(SyscallPolicy, EveryNumberHasTheVerdictOfThisTable) {
  struct Span {
    int first, last, expected;
  };
  constexpr int kLooksAtArguments = -2;
  const Span spans[] = {
      {0, 8, kAllowed},
      {9, 9, kLooksAtArguments},  // … mmap
      {10, 15, kAllowed},
      {16, 16, kLooksAtArguments},  // read … rt_sigreturn, ioctl
      {17, 28, kAllowed},
      {29, 29, kLooksAtArguments},  // … shmget
      {30, 40, kAllowed},
      {41, 41, kLooksAtArguments},
      {42, 52, kAllowed},  // pread … socket … getpeername
      {53, 53, kLooksAtArguments},
      {54, 55, kAllowed},
      {56, 56, kLooksAtArguments},  // socketpair, …sockopt, clone
      {57, 71, kAllowed},
      {72, 72, kLooksAtArguments},  // fcntl
      {73, 102, kAllowed},
      {103, 103, EPERM},  // fork … getuid, syslog
      {104, 133, kAllowed},
      {134, 134, EPERM},
      {135, 135, kLooksAtArguments},  // … mknod, uselib, personality
      {136, 136, EPERM},
      {137, 138, kAllowed},
      {139, 139, EPERM},
      {140, 152, kAllowed},  // ustat, statfs, sysfs, …
      {153, 156, EPERM},
      {157, 157, kLooksAtArguments},
      {158, 158, kAllowed},
      {159, 159, EPERM},
      {160, 161, kAllowed},  // vhangup … , prctl, arch_prctl, adjtimex, …
      {162, 162, 0},
      {163, 185, EPERM},  // sync; acct … security
      {186, 204, kAllowed},
      {205, 205, EPERM},
      {206, 210, ENOSYS},
      {211, 212, EPERM},  // gettid …, io_setup …
      {213, 213, kAllowed},
      {214, 215, EPERM},
      {216, 226, kAllowed},
      {227, 227, EPERM},  // epoll_create …, clock_settime
      {228, 235, kAllowed},
      {236, 239, EPERM},
      {240, 245, kAllowed},
      {246, 246, EPERM},  // …, mbind …, mq_*, kexec_load
      {247, 247, kAllowed},
      {248, 250, EPERM},
      {251, 255, kAllowed},
      {256, 256, EPERM},  // waitid, keys, …, migrate_pages
      {257, 271, kAllowed},
      {272, 272, kLooksAtArguments},
      {273, 278, kAllowed},  // openat …, unshare, …
      {279, 279, EPERM},
      {280, 297, kAllowed},
      {298, 298, EPERM},
      {299, 299, kAllowed},  // move_pages, …, perf, recvmmsg
      {300, 301, EPERM},
      {302, 303, kAllowed},
      {304, 305, EPERM},
      {306, 306, 0},
      {307, 307, kAllowed},  // fanotify, …, by handle, …; syncfs
      {308, 308, EPERM},
      {309, 311, kAllowed},
      {312, 313, EPERM},
      {314, 316, kAllowed},
      {317, 317, kLooksAtArguments},
      {318, 318, kAllowed},
      {319, 319, kLooksAtArguments},  // setns, …, kcmp, finit_module, …, seccomp, getrandom, memfd_create
      {320, 321, EPERM},
      {322, 322, kAllowed},
      {323, 323, EPERM},
      {324, 325, kAllowed},
      {326, 326, ENOSYS},
      {327, 332, kAllowed},
      {333, 333, ENOSYS},
      {334, 334, kAllowed},  // kexec, bpf, …, userfaultfd, …, io_pgetevents, rseq
      {335, 423, ENOSYS},
      {424, 424, kAllowed},
      {425, 433, EPERM},
      {434, 434, kAllowed},  // hole, pidfd, io_uring, mounts
      {435, 435, ENOSYS},
      {436, 439, kAllowed},
      {440, 440, EPERM},
      {441, 441, kAllowed},  // clone3, …, process_madvise, …
      {442, 443, EPERM},
      {444, 446, ENOSYS},
      {447, 448, EPERM},
      {449, 449, kAllowed},  // mount_setattr …, landlock, …
      {450, 451, EPERM},
      {452, 458, kAllowed},
      {459, 461, EPERM},
      {462, 466, kAllowed},  // …, lsm_*, mseal, *xattrat
      {467, 511, ENOSYS},
  };
  const std::set<int> known_rules = {__NR_ioctl,  __NR_fcntl,        __NR_socket,  __NR_socketpair,
                                     __NR_clone,  __NR_personality,  __NR_unshare, __NR_mmap,
                                     __NR_shmget, __NR_memfd_create, __NR_seccomp, __NR_prctl};
  int next = 0;
  for (const auto& span : spans) {
    ASSERT_EQ(span.first, next) << "the table has a gap";
    for (int nr = span.first; nr <= span.last; ++nr) {
      if (span.expected == kLooksAtArguments) {
        EXPECT_TRUE(known_rules.contains(nr)) << nr;
        continue;
      }
      // The same whatever the arguments are.
      EXPECT_EQ(answer(nr), span.expected) << nr;
      EXPECT_EQ(answer(nr, {~0ULL, ~0ULL, ~0ULL, ~0ULL, ~0ULL, ~0ULL}), span.expected) << nr;
    }
    next = span.last + 1;
  }
  EXPECT_EQ(next, 512);
}
#endif

TEST(SyscallPolicy, NoLeasesButAllOtherFileControls) {
  EXPECT_EQ(answer(__NR_fcntl, {3, F_SETLEASE, F_RDLCK}), EPERM);
  EXPECT_EQ(answer(__NR_fcntl, {3, F_SETLEASE | (1ULL << 32), F_RDLCK}), EPERM);  // the kernel looks at 32 bits
  for (int command : {F_DUPFD, F_GETFD, F_SETFD, F_SETFL, F_SETLK, F_GETLEASE, F_ADD_SEALS})
    EXPECT_EQ(answer(__NR_fcntl, {3, static_cast<uint64_t>(command)}), kAllowed) << command;
}

TEST(SyscallPolicy, NoHugePages) {
  constexpr uint64_t kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;
  EXPECT_EQ(answer(__NR_mmap, {0, 4096, 3, kAnonymous}), kAllowed);
  EXPECT_EQ(answer(__NR_mmap, {~0ULL, ~0ULL, ~0ULL, ~uint64_t{MAP_HUGETLB}, ~0ULL, ~0ULL}), kAllowed);
  for (uint64_t size : {uint64_t{0}, uint64_t{21} << 26, uint64_t{30} << 26})  // the size of a page, in the same flags
    for (uint64_t high : {uint64_t{0}, kGarbage})
      EXPECT_EQ(answer(__NR_mmap, {0, 4096, 3, kAnonymous | MAP_HUGETLB | size | high}), ENOMEM) << size;
  EXPECT_EQ(answer(__NR_memfd_create, {0x1000, MFD_CLOEXEC | MFD_ALLOW_SEALING}), kAllowed);
  EXPECT_EQ(answer(__NR_memfd_create, {0x1000, MFD_CLOEXEC | MFD_HUGETLB}), EINVAL);
  EXPECT_EQ(answer(__NR_memfd_create, {0x1000, MFD_HUGETLB | kGarbage}), EINVAL);
  EXPECT_EQ(answer(__NR_shmget, {0, 4096, IPC_CREAT | 0600}), kAllowed);
  EXPECT_EQ(answer(__NR_shmget, {0, 4096, IPC_CREAT | 0600 | SHM_HUGETLB}), ENOMEM);
  EXPECT_EQ(answer(__NR_shmget, {0, 4096, SHM_HUGETLB | kGarbage}), ENOMEM);
}

TEST(SyscallPolicy, FiltersOfProgramsHaveNoListeners) {
  for (uint64_t flags : {0, 1 /* TSYNC */, 2 /* LOG */, 4 /* SPEC_ALLOW */, 16 /* TSYNC_ESRCH */})
    EXPECT_EQ(answer(__NR_seccomp, {SECCOMP_SET_MODE_FILTER, flags, 0x1000}), kAllowed) << flags;
  for (uint64_t flags : {uint64_t{8}, uint64_t{8 | 1 | 16}, 8 | kGarbage})
    EXPECT_EQ(answer(__NR_seccomp, {SECCOMP_SET_MODE_FILTER, flags, 0x1000}), EINVAL) << flags;
}

TEST(SyscallPolicy, NobodyHasACoreForItself) {
  constexpr uint64_t kSchedCore = 62;
  for (uint64_t command : {0 /* get */, 1 /* create */, 2 /* share to */, 3 /* share from */}) {
    EXPECT_EQ(answer(__NR_prctl, {kSchedCore, command, 0, 0, 0}), EINVAL) << command;
    EXPECT_EQ(answer(__NR_prctl, {kSchedCore | kGarbage, command, 0, 0, 0}), EINVAL) << command;  // an int
  }
  for (uint64_t option : {1 /* PDEATHSIG */, 4 /* DUMPABLE */, 15 /* NAME */, 36 /* CHILD_SUBREAPER */,
                          38 /* NO_NEW_PRIVS */, 61, 63, 0x53564d41 /* VMA */})
    EXPECT_EQ(answer(__NR_prctl, {option, kSchedCore}), kAllowed) << option;
}

TEST(SyscallPolicy, TheLimitOfCoreFilesStays) {
  const uint64_t there = 0x7ffc00000000;
  EXPECT_EQ(answer(__NR_setrlimit, {RLIMIT_CORE, there}), 0);
  EXPECT_EQ(answer(__NR_setrlimit, {RLIMIT_CORE | (1ULL << 32), there}), 0);  // the kernel looks at 32 bits
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_CORE, there, 0}), 0);
  EXPECT_EQ(answer(__NR_prlimit64, {1, RLIMIT_CORE | (1ULL << 32), there, 0}), 0);
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_CORE, there, there}), EPERM);
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_CORE, 1ULL << 32, 0}), 0);    // a pointer with an empty low half
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_CORE, 0, there}), kAllowed);  // asking
  for (uint64_t other : {RLIMIT_NOFILE, RLIMIT_STACK, RLIMIT_AS}) {
    EXPECT_EQ(answer(__NR_setrlimit, {other, there}), kAllowed);
    EXPECT_EQ(answer(__NR_prlimit64, {0, other, there, there}), kAllowed);
  }
}

TEST(SyscallPolicy, InstallsAndAnswersForReal) {
  pid_t pid = ::fork();
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    if (::unshare(CLONE_NEWUSER) != 0) ::_exit(200);
    if (!program().install()) ::_exit(201);
    auto refused = [](long result, int expected) { return result == -1 && errno == expected; };
    int step = 1;
    auto expect = [&step](bool ok) {
      if (!ok) ::_exit(step);
      ++step;
    };
    expect(::getppid() > 0);
    expect(refused(::unshare(CLONE_NEWNS), EPERM));                                   // 2
    expect(refused(::syscall(__NR_clone3, nullptr, 0), ENOSYS));                      // 3
    expect(refused(::syscall(__NR_mount, "a", "/", "tmpfs", 0, nullptr), EPERM));     // 4
    expect(refused(::socket(38 /* AF_ALG */, SOCK_SEQPACKET, 0), EAFNOSUPPORT));      // 5
    expect(refused(::socket(AF_NETLINK, SOCK_RAW, 9 /* audit */), EPROTONOSUPPORT));  // 6
    expect(refused(::socket(AF_INET, SOCK_RAW, 1), EPERM));                           // 7
    expect(refused(::syscall(__NR_bpf, 0, nullptr, 0), EPERM));                       // 8
    expect(refused(::syscall(__NR_io_uring_setup, 1, nullptr), EPERM));               // 9
    expect(refused(::syscall(__NR_keyctl, 0, 0, 0, 0, 0), EPERM));                    // 10
    expect(refused(::syscall(9999), ENOSYS));                                         // 11
    expect(::syscall(__NR_sync) == 0);                                                // 12
    expect(::socket(AF_INET, SOCK_STREAM, 0) >= 0);                                   // 13
    expect(::socket(AF_NETLINK, SOCK_RAW, 0) >= 0);                                   // 14
    int pair[2];
    expect(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);  // 15
    pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(refused(::unshare(CLONE_NEWUSER), EPERM) ? 7 : 8);  // inherited
    int status = 0;
    expect(::waitpid(grandchild, &status, 0) == grandchild && WEXITSTATUS(status) == 7);  // 16
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 200) GTEST_SKIP() << "no user namespaces here";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "step";
}

TEST(SyscallPolicy, StaysSmall) {
  // Installing costs by length and depth; a policy that grew past this needs a look at why.
  EXPECT_LT(program().code().size(), 256U);
}

}  // namespace
}  // namespace isola::boundary
