// installed_filter_hash: what the kernel really has, not what we believe to have installed.
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include "kernel/fault.h"
#include "kernel/seccomp_digest.h"
#include "kernel/seccomp_program.h"

#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER static_cast<__ptrace_request>(0x420c)
#endif

namespace isola::kernel {

namespace {

// Seized and stopped for as long as this lives. SEIZE sends no signal and leaves the child's own signals alone;
// INTERRUPT stops it in the middle of a system call, which the kernel starts again after the detach.
class Stopped {
 public:
  static Result<Stopped> seize(pid_t pid) {
    if (int e = fault::at("ptrace_seize")) return sys_error("cannot look into process " + std::to_string(pid), e);
    if (::ptrace(PTRACE_SEIZE, pid, 0, 0) < 0) return sys_error("cannot look into process " + std::to_string(pid));
    Stopped held(pid);
    if (::ptrace(PTRACE_INTERRUPT, pid, 0, 0) < 0) return sys_error("cannot stop process " + std::to_string(pid));
    int status = 0;
    pid_t got;
    do got = ::waitpid(pid, &status, __WALL);
    while (got < 0 && errno == EINTR);
    if (got < 0) return sys_error("cannot wait for process " + std::to_string(pid));
    if (!WIFSTOPPED(status)) {
      held.pid_ = -1;
      return fail(Code::unavailable, "process " + std::to_string(pid) + " ended while its filter was being read");
    }
    // Another stop than ours (a signal on its way): hand the signal on when letting go.
    if ((status >> 16) != PTRACE_EVENT_STOP) held.signal_ = WSTOPSIG(status);
    return held;
  }
  Stopped(Stopped&& other) noexcept : pid_(std::exchange(other.pid_, -1)), signal_(other.signal_) {}
  Stopped& operator=(Stopped&&) = delete;
  ~Stopped() {
    if (pid_ > 0) ::ptrace(PTRACE_DETACH, pid_, 0, signal_);
  }

 private:
  explicit Stopped(pid_t pid) : pid_(pid) {}
  pid_t pid_;
  long signal_ = 0;
};

}  // namespace

Result<std::string> installed_filter_hash(pid_t pid) {
  ISOLA_TRY(Stopped stopped, Stopped::seize(pid));
  // Filters are numbered from the oldest; one that does not exist is ENOENT, none at all EINVAL. Without room the
  // kernel tells how much it needs; the process stands still, so that does not change.
  long count = ::ptrace(PTRACE_SECCOMP_GET_FILTER, pid, 0L, nullptr);
  std::vector<sock_filter> code(count > 0 ? static_cast<size_t>(count) : 0);
  if (count > 0) count = ::ptrace(PTRACE_SECCOMP_GET_FILTER, pid, 0L, code.data());
  if (count < 0) return sys_error("cannot read the system-call filter of process " + std::to_string(pid));
  if (static_cast<size_t>(count) != code.size())
    return fail(Code::corrupt, "the system-call filter of process " + std::to_string(pid) + " changed");
  if (::ptrace(PTRACE_SECCOMP_GET_FILTER, pid, 1L, nullptr) >= 0)
    return fail(Code::corrupt, "process " + std::to_string(pid) + " has more than one system-call filter");
  if (errno != ENOENT) return sys_error("cannot count the system-call filters of process " + std::to_string(pid));
  return remembered_sha256_hex({reinterpret_cast<const char*>(code.data()), code.size() * sizeof(sock_filter)});
}

}  // namespace isola::kernel
