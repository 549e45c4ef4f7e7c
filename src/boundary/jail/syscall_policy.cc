#include "boundary/jail/syscall_policy.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>

#include <cerrno>
#include <initializer_list>
#include <utility>

#include "boundary/shared_calls.h"

namespace isola::boundary {

namespace {

using kernel::ArgumentTest;
using kernel::SeccompAction;
using kernel::SeccompCall;

// Calls newer than the headers we may be built with. From 424 on, numbers are the same on every architecture.
enum NewCall : uint32_t {
  kFchmodat2 = 452,
  kMapShadowStack = 453,
  kFutexWake = 454,
  kFutexWait = 455,
  kFutexRequeue = 456,
  kStatmount = 457,
  kListmount = 458,
  kMseal = 462,
  kSetxattrat = 463,
  kGetxattrat = 464,
  kListxattrat = 465,
  kRemovexattrat = 466,
};
// Anything newer does not exist inside until somebody has looked at it.
constexpr uint32_t kNewest = kRemovexattrat;

// Allowed whatever the arguments are. Grouped by what they are for, so that one sees at a glance what is not there.
// clang-format off
constexpr uint32_t kAllowed[] = {
    // files: open, read, write (memfd_create has a rule)
    __NR_openat, __NR_openat2, __NR_close, __NR_close_range, __NR_read, __NR_write, __NR_readv, __NR_writev,
    __NR_pread64, __NR_pwrite64, __NR_preadv, __NR_pwritev, __NR_preadv2, __NR_pwritev2, __NR_lseek, __NR_fallocate,
    __NR_truncate, __NR_ftruncate, __NR_fsync, __NR_fdatasync, __NR_sync_file_range, __NR_fadvise64,
    __NR_readahead, __NR_sendfile, __NR_splice, __NR_tee, __NR_vmsplice, __NR_dup, __NR_dup3,
    __NR_flock, __NR_pipe2,
    // files: names and metadata
    __NR_getcwd, __NR_chdir, __NR_fchdir, __NR_chroot, __NR_umask, __NR_getdents64, __NR_newfstatat, __NR_fstat,
    __NR_statx, __NR_statfs, __NR_fstatfs, __NR_faccessat, __NR_faccessat2, __NR_readlinkat, __NR_mkdirat,
    __NR_mknodat, __NR_linkat, __NR_symlinkat, __NR_unlinkat, __NR_renameat2, __NR_fchmod, __NR_fchmodat, kFchmodat2,
    __NR_fchown, __NR_fchownat, __NR_utimensat, __NR_setxattr, __NR_lsetxattr, __NR_fsetxattr, __NR_getxattr,
    __NR_lgetxattr, __NR_fgetxattr, __NR_listxattr, __NR_llistxattr, __NR_flistxattr, __NR_removexattr,
    __NR_lremovexattr, __NR_fremovexattr, kSetxattrat, kGetxattrat, kListxattrat, kRemovexattrat,
    __NR_name_to_handle_at, kStatmount, kListmount,
    // waiting for things
    __NR_pselect6, __NR_ppoll, __NR_epoll_create1, __NR_epoll_ctl, __NR_epoll_pwait, __NR_epoll_pwait2,
    __NR_eventfd2, __NR_signalfd4, __NR_timerfd_create, __NR_timerfd_settime, __NR_timerfd_gettime,
    __NR_inotify_init1, __NR_inotify_add_watch, __NR_inotify_rm_watch,
    // memory (mmap has a rule)
    __NR_brk, __NR_munmap, __NR_mremap, __NR_mprotect, __NR_madvise, __NR_msync, __NR_mincore, __NR_mlock,
    __NR_mlock2, __NR_mlockall, __NR_munlock, __NR_munlockall, __NR_remap_file_pages, __NR_pkey_alloc,
    __NR_pkey_free, __NR_pkey_mprotect, kMseal, kMapShadowStack, __NR_membarrier,
    // processes and threads (clone, unshare and prctl have rules)
    __NR_execve, __NR_execveat, __NR_exit, __NR_exit_group, __NR_wait4, __NR_waitid, __NR_kill, __NR_tkill,
    __NR_tgkill, __NR_pidfd_open, __NR_pidfd_send_signal, __NR_pidfd_getfd, __NR_set_tid_address,
    __NR_set_robust_list, __NR_get_robust_list, __NR_rseq, __NR_futex, __NR_futex_waitv, kFutexWake, kFutexWait,
    kFutexRequeue, __NR_getpid, __NR_gettid, __NR_getppid, __NR_getpgid, __NR_setpgid, __NR_getsid,
    __NR_setsid, __NR_restart_syscall,
    // debuggers: without CAP_SYS_PTRACE they reach the caller's own processes inside, nobody else's
    __NR_ptrace, __NR_process_vm_readv, __NR_process_vm_writev,
    // signals
    __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_rt_sigpending, __NR_rt_sigsuspend,
    __NR_rt_sigtimedwait, __NR_rt_sigqueueinfo, __NR_rt_tgsigqueueinfo, __NR_sigaltstack,
    // identity: the sandbox's own ids only (seccomp has a rule)
    __NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid, __NR_getresuid, __NR_getresgid, __NR_getgroups,
    __NR_setuid, __NR_setgid, __NR_setreuid, __NR_setregid, __NR_setresuid, __NR_setresgid, __NR_setfsuid,
    __NR_setfsgid, __NR_setgroups, __NR_capget, __NR_capset,
    // limits, scheduling, accounting
    __NR_getrlimit, __NR_getrusage, __NR_times, __NR_getpriority, __NR_setpriority,
    __NR_ioprio_get, __NR_ioprio_set, __NR_sched_yield, __NR_sched_getaffinity, __NR_sched_setaffinity,
    __NR_sched_getparam, __NR_sched_setparam, __NR_sched_getscheduler, __NR_sched_setscheduler, __NR_sched_getattr,
    __NR_sched_setattr, __NR_sched_get_priority_max, __NR_sched_get_priority_min, __NR_sched_rr_get_interval,
    __NR_getcpu,
    // time: reading it
    __NR_gettimeofday, __NR_clock_gettime, __NR_clock_getres, __NR_clock_nanosleep, __NR_nanosleep, __NR_getitimer,
    __NR_setitimer, __NR_timer_create, __NR_timer_settime, __NR_timer_gettime, __NR_timer_getoverrun,
    __NR_timer_delete,
    // sockets (socket, socketpair and setsockopt have rules)
    __NR_bind, __NR_connect, __NR_listen, __NR_accept, __NR_accept4, __NR_shutdown, __NR_getsockname,
    __NR_getpeername, __NR_getsockopt, __NR_sendto, __NR_sendmsg, __NR_sendmmsg, __NR_recvfrom,
    __NR_recvmsg, __NR_recvmmsg,
    // System V and POSIX IPC, in the sandbox's own namespace (shmget has a rule)
    __NR_shmat, __NR_shmctl, __NR_shmdt, __NR_semget, __NR_semop, __NR_semctl, __NR_semtimedop,
    __NR_msgget, __NR_msgsnd, __NR_msgrcv, __NR_msgctl, __NR_mq_open, __NR_mq_unlink, __NR_mq_timedsend,
    __NR_mq_timedreceive, __NR_mq_notify, __NR_mq_getsetattr,
    // the machine
    __NR_uname, __NR_sysinfo, __NR_getrandom,
#if defined(__x86_64__)
    // what only x86_64 has: older forms of the above, and its registers
    __NR_open, __NR_creat, __NR_stat, __NR_lstat, __NR_access, __NR_readlink, __NR_getdents, __NR_mkdir, __NR_rmdir,
    __NR_mknod, __NR_link, __NR_unlink, __NR_symlink, __NR_rename, __NR_renameat, __NR_chmod, __NR_chown,
    __NR_lchown, __NR_utime, __NR_utimes, __NR_futimesat, __NR_pipe, __NR_dup2, __NR_poll, __NR_select,
    __NR_epoll_create, __NR_epoll_wait, __NR_eventfd, __NR_signalfd, __NR_inotify_init, __NR_fork, __NR_vfork,
    __NR_getpgrp, __NR_pause, __NR_alarm, __NR_time, __NR_arch_prctl,
#elif defined(__aarch64__)
    __NR_renameat,
#endif
};
// clang-format on

// Numbers in the middle that no kernel of this architecture has ever given out.
struct Hole {
  uint32_t first, last;
};
constexpr Hole kHoles[] = {
#if defined(__x86_64__)
    {335, 423},  // 335 (uretprobe) is the kernel's own and does not pass filters
#elif defined(__aarch64__)
    {244, 259},
    {295, 423},
#endif
};

constexpr int kSocketTypeMask = 0xf;  // the rest of the type argument is SOCK_CLOEXEC and SOCK_NONBLOCK

// The kernel cuts clone's flags to 32 bits, so the low half is all there is to look at. CLONE_NEWTIME shares its bit
// with the exit signal here and cannot be asked for through clone.
constexpr uint32_t kNamespaceFlags[] = {CLONE_NEWNS,   CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                                        CLONE_NEWUSER, CLONE_NEWPID,    CLONE_NEWNET};

SeccompCall clone_call() {
  SeccompCall call{.number = __NR_clone, .otherwise = SeccompAction::error(EPERM)};
  uint32_t all = 0;
  for (uint32_t flag : kNamespaceFlags) all |= flag;
  call.rules.push_back({{ArgumentTest::masked(0, all, 0)}, SeccompAction::allow()});
  return call;
}

// unshare takes all 64 bits, and newer kernels give out new ones: only the harmless ones that we know may be set.
SeccompCall unshare_call() {
  constexpr uint64_t kHarmless = CLONE_FS | CLONE_FILES | CLONE_SYSVSEM | CLONE_VM | CLONE_SIGHAND | CLONE_THREAD;
  SeccompCall call{.number = __NR_unshare, .otherwise = SeccompAction::error(EPERM)};
  call.rules.push_back({{ArgumentTest::masked64(0, ~kHarmless, 0)}, SeccompAction::allow()});
  return call;
}

// Families, types and protocols are ints: the kernel never sees the high halves. Two numbers that differ in one bit are
// tested at once (IPv4 and IPv6 differ in 8, the two netlink protocols in 4), which halves the longest block.
SeccompCall socket_call(uint32_t number) {
  static_assert((AF_INET ^ AF_INET6) == 8 && (NETLINK_ROUTE ^ NETLINK_SOCK_DIAG) == 4);
  const auto inet = ArgumentTest::masked(0, ~8U, AF_INET & ~8U);
  const auto netlink = ArgumentTest::is(0, AF_NETLINK);
  auto type = [](uint32_t t) { return ArgumentTest::masked(1, kSocketTypeMask, t); };
  auto protocol = [](uint32_t p) { return ArgumentTest::is(2, p); };
  const auto allow = SeccompAction::allow();
  return {.number = number,
          .rules =
              {
                  {{ArgumentTest::is(0, AF_UNIX)}, allow},
                  {{inet, type(SOCK_STREAM), protocol(0)}, allow},
                  {{inet, type(SOCK_STREAM), protocol(IPPROTO_TCP)}, allow},
                  {{inet, type(SOCK_DGRAM), protocol(0)}, allow},
                  {{inet, type(SOCK_DGRAM), protocol(IPPROTO_UDP)}, allow},
                  // Raw ones get the answer that the kernel gives to whoever may not have them.
                  {{inet, type(SOCK_RAW)}, SeccompAction::error(EPERM)},
                  {{inet}, SeccompAction::error(EPROTONOSUPPORT)},  // MPTCP, SCTP, UDP-Lite, ping …
                  // Looking at interfaces and sockets (changing them takes CAP_NET_ADMIN, which nobody inside has).
                  {{netlink, ArgumentTest::masked(2, ~4U, NETLINK_ROUTE)}, allow},
                  {{netlink}, SeccompAction::error(EPROTONOSUPPORT)},
              },
          .otherwise = SeccompAction::error(EAFNOSUPPORT)};
}

// The command is an unsigned int. Refused: typing into somebody's terminal, the console's own commands, changing a
// terminal's line discipline (loads rarely used drivers), and the commands of btrfs, which lets everybody make
// subvolumes, on which no limit of a volume's would be. Sharing data between files has the same kind of number, and is
// refused as where a filesystem cannot: what one volume wrote and another shares counts against the first for ever, so
// that the second could hold more than its limit.
SeccompCall ioctl_call() {
  constexpr uint32_t kTiocsti = 0x5412, kTioclinux = 0x541c, kTiocsetd = 0x5423;
  constexpr uint32_t kKind = 0xff00, kBtrfs = 0x9400;
  SeccompCall call{.number = __NR_ioctl};
  for (uint32_t command : {uint32_t{FICLONE}, uint32_t{FICLONERANGE}, uint32_t{FIDEDUPERANGE}})
    call.rules.push_back({{ArgumentTest::is(1, command)}, SeccompAction::error(EOPNOTSUPP)});
  call.rules.push_back({{ArgumentTest::masked(1, kKind, kBtrfs)}, SeccompAction::error(ENOTTY)});
  for (uint32_t command : {kTiocsti, kTioclinux, kTiocsetd})
    call.rules.push_back({{ArgumentTest::is(1, command)}, SeccompAction::error(EPERM)});
  return call;
}

// A lease on a file makes whoever else opens it wait: a file that the host shows to a sandbox stays the host's.
SeccompCall fcntl_call() {
  return {.number = __NR_fcntl, .rules = {{{ArgumentTest::is(1, F_SETLEASE)}, SeccompAction::error(EPERM)}}};
}

// An unsigned int: asking (0xffffffff), the plain Linux one, its 32-bit name for uname, gdb's and setarch's -R, and
// the old version number. None of those brings back the old executable-stack or zero-page behaviours.
SeccompCall personality_call() {
  SeccompCall call{.number = __NR_personality, .otherwise = SeccompAction::error(EPERM)};
  for (uint32_t persona : {0U, 0xffffffffU, uint32_t{ADDR_NO_RANDOMIZE}, uint32_t{UNAME26}, uint32_t{PER_LINUX32},
                           uint32_t{PER_LINUX32} | UNAME26, uint32_t{PER_LINUX32} | ADDR_NO_RANDOMIZE})
    call.rules.push_back({{ArgumentTest::is(0, persona)}, SeccompAction::allow()});
  return call;
}

// A listener is a descriptor that keeps its filter, and all those below it, after the process is gone: thousands of
// them in one process would use up the pool of compiled filters, which the whole machine shares (see setsockopt).
// Without one there are as many as there are processes. An older kernel's answer.
SeccompCall seccomp_call() {
  return {.number = __NR_seccomp,
          .rules = {{{ArgumentTest::masked(1, SECCOMP_FILTER_FLAG_NEW_LISTENER, SECCOMP_FILTER_FLAG_NEW_LISTENER)},
                     SeccompAction::error(EINVAL)}}};
}

}  // namespace

kernel::SeccompPolicy jail_syscall_policy() {
  kernel::SeccompPolicy policy{.newest = kNewest};
  auto& calls = policy.calls;
  for (uint32_t number : kAllowed) calls.push_back({.number = number});
  calls.push_back(clone_call());
  calls.push_back(unshare_call());
  calls.push_back(socket_call(__NR_socket));
  calls.push_back(socket_call(__NR_socketpair));
  calls.push_back(no_socket_filters_call());
  calls.push_back(ioctl_call());
  calls.push_back(fcntl_call());
  calls.push_back(personality_call());
  for (auto& call : no_huge_pages_calls()) calls.push_back(std::move(call));
  calls.push_back(seccomp_call());
  calls.push_back(no_core_scheduling_call());
  for (auto& call : core_limit_calls()) calls.push_back(std::move(call));
  for (uint32_t number : {__NR_sync, __NR_syncfs})
    calls.push_back({.number = number, .otherwise = SeccompAction::error(0)});
  // It shares data where the filesystem can (see ioctl). Whoever copies by it has another way for older kernels.
  calls.push_back({.number = __NR_copy_file_range, .otherwise = SeccompAction::error(ENOSYS)});
  auto absent = [&](uint32_t number) {
    calls.push_back({.number = number, .otherwise = SeccompAction::error(ENOSYS)});
  };
  for (uint32_t number :
       // Kernel aio: the whole machine shares one small number of rings (fs.aio-max-nr), so one sandbox could use it
       // up.
       {__NR_clone3, __NR_landlock_create_ruleset, __NR_landlock_add_rule, __NR_landlock_restrict_self, __NR_io_setup,
        __NR_io_destroy, __NR_io_submit, __NR_io_cancel, __NR_io_getevents, __NR_io_pgetevents})
    absent(number);
  for (Hole hole : kHoles)
    for (uint32_t number = hole.first; number <= hole.last; ++number) absent(number);
  return policy;
}

Result<kernel::SeccompProgram> jail_syscall_program() { return kernel::SeccompProgram::compile(jail_syscall_policy()); }

}  // namespace isola::boundary
