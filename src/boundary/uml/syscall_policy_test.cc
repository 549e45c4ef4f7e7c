// The filter around a kernel that runs as a program, by evaluating it.
#include "boundary/uml/syscall_policy.h"

#include <asm/unistd.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/if_tun.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>

#include "kernel/bpf_evaluator.h"

namespace isola::boundary::uml {
namespace {

constexpr int kAllowed = -1;  // else the errno

int answer(int nr, std::initializer_list<uint64_t> args = {}, uint32_t arch = kernel::kNativeArch) {
  static const auto program = kernel_syscall_program();
  if (!program) std::abort();
  seccomp_data call{.nr = nr, .arch = arch};
  std::copy(args.begin(), args.end(), call.args);
  auto value = kernel::evaluate(program->code(), call);
  EXPECT_TRUE(value);
  if (!value) return -3;
  if (*value == SECCOMP_RET_ALLOW) return kAllowed;
  EXPECT_EQ(*value & SECCOMP_RET_ACTION_FULL, SECCOMP_RET_ERRNO);
  return static_cast<int>(*value & SECCOMP_RET_DATA);
}

TEST(UmlSyscallPolicy, TheKernelCanDoItsWork) {
  for (int nr : {__NR_ptrace, __NR_mmap, __NR_munmap, __NR_mprotect, __NR_wait4, __NR_kill, __NR_pread64, __NR_pwrite64,
                 __NR_sendmmsg, __NR_recvmmsg, __NR_epoll_ctl, __NR_timer_settime, __NR_rt_sigreturn, __NR_execve})
    EXPECT_EQ(answer(nr), kAllowed) << nr;
  EXPECT_EQ(answer(__NR_clone, {CLONE_VM | CLONE_FILES | SIGCHLD}), kAllowed);
  EXPECT_EQ(answer(__NR_socketpair, {AF_UNIX}), kAllowed);
}

// No control group counts them.
TEST(UmlSyscallPolicy, WhatBelongsToTheWholeMachineStaysThere) {
  EXPECT_EQ(answer(__NR_mmap, {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS}), kAllowed);
  EXPECT_EQ(answer(__NR_mmap, {0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB}), ENOMEM);
  EXPECT_EQ(answer(__NR_prctl, {PR_SET_NAME}), kAllowed);
  EXPECT_EQ(answer(__NR_prctl, {62 /* PR_SCHED_CORE */}), EINVAL);
  EXPECT_NE(answer(__NR_memfd_create), kAllowed);
  EXPECT_NE(answer(__NR_shmget), kAllowed);
}

TEST(UmlSyscallPolicy, NothingLeadsOutOfTheBox) {
  for (int nr : {__NR_socket,
                 __NR_connect,
                 __NR_bind,
                 __NR_listen,
                 __NR_accept4,
                 __NR_unshare,
                 __NR_setns,
                 __NR_mount,
                 __NR_umount2,
                 __NR_pivot_root,
                 __NR_chroot,
                 __NR_open_tree,
                 __NR_move_mount,
                 __NR_fsopen,
                 __NR_mount_setattr,
                 __NR_bpf,
                 __NR_perf_event_open,
                 __NR_userfaultfd,
                 __NR_io_uring_setup,
                 __NR_keyctl,
                 __NR_add_key,
                 __NR_request_key,
                 __NR_init_module,
                 __NR_finit_module,
                 __NR_kexec_load,
                 __NR_reboot,
                 __NR_swapon,
                 __NR_setuid,
                 __NR_setresuid,
                 __NR_setgroups,
                 __NR_chown,
                 __NR_fchownat,
                 __NR_mknodat,
                 __NR_process_vm_readv,
                 __NR_process_vm_writev,
                 __NR_pidfd_getfd,
                 __NR_open_by_handle_at,
                 __NR_clock_settime,
                 __NR_settimeofday,
                 __NR_sethostname,
                 __NR_acct,
                 __NR_quotactl,
                 __NR_seccomp,
                 __NR_memfd_create,
                 __NR_splice,
                 __NR_vmsplice,
                 __NR_sched_setscheduler,
                 __NR_setpriority,
                 __NR_personality,
                 __NR_syslog,
#if defined(__x86_64__)
                 __NR_modify_ldt,
                 __NR_iopl,
                 __NR_ioperm,
#endif
                 __NR_pidfd_open,
                 __NR_process_madvise,
                 __NR_inotify_init1,
                 __NR_fanotify_init})
    EXPECT_EQ(answer(nr), EPERM) << nr;
  EXPECT_EQ(answer(__NR_clone3), ENOSYS) << "its flags cannot be seen";
  EXPECT_EQ(answer(__NR_rseq), ENOSYS) << "the guest's processes would die of it";
  for (uint64_t flag : {CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS})
    EXPECT_EQ(answer(__NR_clone, {flag | SIGCHLD}), EPERM) << flag;
  EXPECT_EQ(answer(__NR_socketpair, {AF_INET}), EAFNOSUPPORT);
  // The pool of compiled filters is the machine's.
  for (uint64_t filter : {SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF})
    EXPECT_EQ(answer(__NR_setsockopt, {3, SOL_SOCKET, filter}), EPERM) << filter;
  EXPECT_EQ(answer(__NR_setsockopt, {3, SOL_SOCKET, SO_SNDBUF}), kAllowed);
}

// Whoever crashes a kernel that he took over starts no core handler of the host.
TEST(UmlSyscallPolicy, TheLimitOfCoreFilesStays) {
  constexpr uint64_t there = 0x7fff0000;
  EXPECT_EQ(answer(__NR_setrlimit, {RLIMIT_CORE, there}), 0);
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_CORE, there, 0}), 0);
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_CORE, there, there}), EPERM);
  EXPECT_EQ(answer(__NR_setrlimit, {RLIMIT_STACK, there}), kAllowed);  // as the kernel does at its start
  EXPECT_EQ(answer(__NR_prlimit64, {0, RLIMIT_STACK, there, 0}), kAllowed);
}

// The TAP stays what it is: a pipe for frames.
TEST(UmlSyscallPolicy, DevicesAreOnlyReadAndWritten) {
  for (uint64_t command : {uint64_t{TUNSETIFF}, uint64_t{TUNSETOFFLOAD}, uint64_t{TUNSETPERSIST}, uint64_t{TUNSETOWNER},
                           uint64_t{TUNATTACHFILTER}, uint64_t{TIOCSTI}})
    EXPECT_EQ(answer(__NR_ioctl, {4, command}), ENOTTY) << command;
  EXPECT_EQ(answer(__NR_ioctl, {4, FIONBIO}), kAllowed);
  EXPECT_EQ(answer(__NR_fcntl, {4, F_SETLEASE}), EINVAL);
  EXPECT_EQ(answer(__NR_fcntl, {4, F_SETFL}), kAllowed);
}

TEST(UmlSyscallPolicy, OtherNumbersDoNotExist) {
  EXPECT_EQ(answer(100'000), ENOSYS);
  EXPECT_EQ(answer(__NR_read, {}, 0), ENOSYS);
}

}  // namespace
}  // namespace isola::boundary::uml
