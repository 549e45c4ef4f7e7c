#include "gate/confine.h"

#include <grp.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "kernel/capability.h"
#include "kernel/seccomp_program.h"

namespace isola::gate {

namespace {

// Sockets, pipes, memory (also locked, for secrets), time, and reading the host's resolver configuration. No exec, no
// fork, no files but to read, no signals to others, no namespaces. A sanitizer needs more than that.
constexpr uint32_t kCalls[] = {
    __NR_accept4,      __NR_bind,           __NR_brk,          __NR_clock_gettime, __NR_close,
    __NR_connect,      __NR_epoll_create1,  __NR_epoll_ctl,    __NR_epoll_pwait,   __NR_exit,
    __NR_exit_group,   __NR_fcntl,          __NR_fstat,        __NR_futex,         __NR_getpeername,
    __NR_getpid,       __NR_getrandom,      __NR_getsockname,  __NR_getsockopt,    __NR_gettid,
    __NR_gettimeofday, __NR_getuid,         __NR_geteuid,      __NR_getgid,        __NR_getegid,
    __NR_ioctl,        __NR_listen,         __NR_lseek,        __NR_madvise,       __NR_mmap,
    __NR_mprotect,     __NR_mremap,         __NR_munmap,       __NR_newfstatat,    __NR_pipe2,
    __NR_ppoll,        __NR_read,           __NR_recvfrom,     __NR_recvmsg,       __NR_restart_syscall,
    __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_sendmsg,       __NR_sendto,
    __NR_setsockopt,   __NR_shutdown,       __NR_socket,       __NR_splice,        __NR_statx,
    __NR_uname,        __NR_write,          __NR_writev,       __NR_mlock,         __NR_munlock,
#ifdef __NR_epoll_wait
    __NR_epoll_wait,   __NR_poll,           __NR_stat,         __NR_time,
#endif
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

Result<void> limit_calls() {
  using kernel::ArgumentTest;
  using kernel::SeccompAction;
  if (kSanitized) return {};
  kernel::SeccompPolicy policy{.newest = 466};
  for (uint32_t number : kCalls) policy.calls.push_back({.number = number});
  // Files are opened to be read, and nothing else.
  policy.calls.push_back(
      {.number = __NR_openat,
       .rules = {{.tests = {ArgumentTest::masked(2, 0x3 | 0100, 0)}, .action = SeccompAction::allow()}},
       .otherwise = SeccompAction::error(EACCES)});
  // abort() signals this very thread.
  policy.calls.push_back(
      {.number = __NR_tgkill,
       .rules = {{.tests = {ArgumentTest::is(0, static_cast<uint32_t>(::getpid()))}, .action = SeccompAction::allow()}},
       .otherwise = SeccompAction::error(EPERM)});
  ISOLA_TRY(auto program, kernel::SeccompProgram::compile(policy));
  return program.install();
}

Result<void> become(const std::string& wanted) {
  const passwd* user = wanted.empty() ? ::getpwnam("isola-gate") : ::getpwnam(wanted.c_str());
  if (!user && wanted.empty()) user = ::getpwnam("nobody");
  if (!user || user->pw_uid == 0) return fail(Code::not_found, "there is no ordinary user for the gate to become");
  if (::setgroups(0, nullptr) < 0 || ::setresgid(user->pw_gid, user->pw_gid, user->pw_gid) < 0 ||
      ::setresuid(user->pw_uid, user->pw_uid, user->pw_uid) < 0)
    return sys_error("the gate cannot become user " + std::string(user->pw_name));
  return {};
}

// Values stand in more than their own locked pages: in the automata that search for them, and in requests on their way.
// Only with a limit that will never be met: else memory that is needed later would be refused for it.
void stay_out_of_swap() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur != RLIM_INFINITY ||
      ::mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0)
    log::warn("gate", "not all of its memory can be kept out of the swap: encrypt that, or have none");
}

}  // namespace

Result<void> confine(const std::string& user) {
  stay_out_of_swap();
  int with_parent = 0;  // the signal by which it dies with the launcher, which the kernel forgets at a change of user
  if (::prctl(PR_GET_PDEATHSIG, &with_parent, 0, 0, 0) < 0) return sys_error("the gate cannot see how it ends");
  const pid_t parent = ::getppid();
  if (::geteuid() == 0) {
    ISOLA_CHECK(kernel::limit_bounding_set(0));
    ISOLA_CHECK(become(user));
  }
  ISOLA_CHECK(kernel::set_capabilities(0, 0, 0));
  if (::prctl(PR_SET_PDEATHSIG, with_parent, 0, 0, 0) < 0) return sys_error("the gate cannot be made to end in time");
  if (with_parent != 0 && ::getppid() != parent) return fail(Code::unavailable, "the gate's launcher has ended");
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return sys_error("the gate cannot give up new privileges");
  // Not to be read or traced by whoever else runs as this user.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot protect the gate's memory");
  return limit_calls();
}

}  // namespace isola::gate
