#include "boundary/uml/syscall_policy.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "boundary/shared_calls.h"

namespace isola::boundary::uml {

namespace {

using kernel::ArgumentTest;
using kernel::SeccompAction;
using kernel::SeccompCall;

constexpr uint32_t kNewest = 466;

// clang-format off
constexpr uint32_t kAllowed[] = {
    // files of the box, and those that are open
    __NR_openat, __NR_close, __NR_close_range, __NR_read, __NR_write, __NR_readv, __NR_writev, __NR_pread64,
    __NR_pwrite64, __NR_lseek, __NR_fallocate, __NR_ftruncate, __NR_fsync, __NR_fdatasync, __NR_dup, __NR_dup3,
    __NR_pipe2, __NR_newfstatat, __NR_fstat, __NR_statfs, __NR_fstatfs, __NR_faccessat, __NR_faccessat2,
    __NR_readlinkat, __NR_mkdirat, __NR_unlinkat, __NR_getcwd, __NR_umask,
    // waiting for things
    __NR_ppoll, __NR_epoll_create1, __NR_epoll_ctl, __NR_epoll_pwait, __NR_eventfd2, __NR_signalfd4,
    // memory (mmap has rules)
    __NR_brk, __NR_munmap, __NR_mremap, __NR_mprotect, __NR_madvise,
    // processes (clone has rules)
    __NR_execve, __NR_exit, __NR_exit_group, __NR_wait4, __NR_waitid, __NR_kill, __NR_tkill, __NR_tgkill,
    __NR_set_tid_address, __NR_set_robust_list, __NR_futex, __NR_getpid, __NR_gettid, __NR_getppid,
    __NR_getpgid, __NR_setpgid, __NR_setsid, __NR_ptrace, __NR_restart_syscall, __NR_sched_yield,
    __NR_sched_setaffinity, __NR_sched_getaffinity, __NR_getrlimit, __NR_getrusage,
    // signals
    __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_rt_sigpending, __NR_rt_sigsuspend,
    __NR_rt_sigtimedwait, __NR_sigaltstack,
    // identity: reading it, and giving up the last capabilities, which happens behind this filter
    __NR_capget, __NR_capset, __NR_getuid, __NR_geteuid, __NR_getgid, __NR_getegid,
    // time
    __NR_gettimeofday, __NR_clock_gettime, __NR_clock_getres, __NR_clock_nanosleep, __NR_nanosleep, __NR_getitimer,
    __NR_setitimer, __NR_timer_create, __NR_timer_settime, __NR_timer_gettime, __NR_timer_delete,
    __NR_timer_getoverrun,
    // the sockets that it was given (socketpair and setsockopt have rules)
    __NR_getsockopt, __NR_sendto, __NR_sendmsg, __NR_sendmmsg, __NR_recvfrom, __NR_recvmsg,
    __NR_recvmmsg, __NR_shutdown,
    // the machine
    __NR_uname, __NR_getrandom,
#if defined(__x86_64__)
    __NR_open, __NR_stat, __NR_lstat, __NR_access, __NR_readlink, __NR_mkdir, __NR_rmdir, __NR_unlink, __NR_pipe,
    __NR_dup2, __NR_poll, __NR_epoll_create, __NR_epoll_wait, __NR_fork, __NR_vfork, __NR_getpgrp, __NR_alarm,
    __NR_arch_prctl,
#endif
};
// clang-format on

constexpr uint32_t kNamespaces =
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP;

}  // namespace

kernel::SeccompPolicy kernel_syscall_policy() {
  kernel::SeccompPolicy policy{.newest = kNewest};
  for (uint32_t number : kAllowed) policy.calls.push_back({.number = number});
  for (auto& call : core_limit_calls()) policy.calls.push_back(std::move(call));
  policy.calls.push_back(no_socket_filters_call());
  policy.calls.push_back(no_core_scheduling_call());
  for (auto& call : no_huge_pages_calls())
    if (call.number == __NR_mmap) policy.calls.push_back(std::move(call));
  const auto refuse = SeccompAction::error(EPERM);
  policy.calls.push_back({.number = __NR_clone,
                          .rules = {{{ArgumentTest::masked(0, kNamespaces, 0)}, SeccompAction::allow()}},
                          .otherwise = refuse});
  policy.calls.push_back({.number = __NR_socketpair,
                          .rules = {{{ArgumentTest::is(0, AF_UNIX)}, SeccompAction::allow()}},
                          .otherwise = SeccompAction::error(EAFNOSUPPORT)});
  // Descriptors and their flags; no leases, no signals for others.
  SeccompCall flags{.number = __NR_fcntl, .rules = {}, .otherwise = SeccompAction::error(EINVAL)};
  for (uint32_t command : {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_SETOWN, F_GETOWN, F_SETLK,
                           F_GETLK, 10 /* F_SETSIG */})
    flags.rules.push_back({{ArgumentTest::is(1, command)}, SeccompAction::allow()});
  policy.calls.push_back(std::move(flags));
  // Everything that is open is a file, a socket or a TAP; whoever asks for a terminal or a disk is told that it is
  // none.
  SeccompCall control{.number = __NR_ioctl, .rules = {}, .otherwise = SeccompAction::error(ENOTTY)};
  for (uint32_t command : {uint32_t{FIONBIO}, uint32_t{FIONREAD}})
    control.rules.push_back({{ArgumentTest::is(1, command)}, SeccompAction::allow()});
  policy.calls.push_back(std::move(control));
  // C libraries then use clone, whose flags a filter can see. And they register no area that the host's kernel writes
  // to now and then (rseq): the processes that this kernel makes for the guest's have inherited that, and nothing is
  // there.
  for (uint32_t absent : {__NR_clone3, __NR_rseq})
    policy.calls.push_back({.number = absent, .rules = {}, .otherwise = SeccompAction::error(ENOSYS)});
  return policy;
}

Result<kernel::SeccompProgram> kernel_syscall_program() {
  return kernel::SeccompProgram::compile(kernel_syscall_policy());
}

}  // namespace isola::boundary::uml
