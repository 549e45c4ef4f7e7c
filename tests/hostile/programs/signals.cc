// Signals at process 1, at everything, and at processes outside.
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// The letter after the name in /proc/PID/stat; 0 when there is no such process.
char state_of(int pid) {
  auto text = slurp(fmt::format("/proc/{}/stat", pid));
  size_t at = text ? text->rfind(')') : std::string::npos;
  return at == std::string::npos || at + 2 >= text->size() ? '\0' : (*text)[at + 2];
}

Outcome hit(int signal, const char* name) {
  int pid = target_pid();
  int sent = ::kill(pid, signal);
  if (sent != 0 && errno != EPERM) return judge("kill", -1);
  bool fell = wait_until(1000, [&] {
    char state = state_of(pid);
    return state == '\0' || state == 'Z' || state == 'X' || state == 'T';
  });
  if (fell) return breach(fmt::format("process {} fell to {}", pid, name));
  return contained(fmt::format("process {} lives on after {}", pid, name));
}

Outcome kill_init(const Args&) { return hit(SIGKILL, "SIGKILL"); }
Outcome stop_init(const Args&) { return hit(SIGSTOP, "SIGSTOP"); }

// Every signal with a default action that ends; process 1 must have thought of each.
Outcome pester_init(const Args&) {
  for (int signal = 1; signal < 65; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP || signal == SIGRTMIN + 1) continue;
    int sent = ::kill(target_pid(), signal);
    if (sent != 0 && errno == ESRCH) break;
  }
  bool fell = wait_until(500, [] {
    char state = state_of(target_pid());
    return state == '\0' || state == 'Z' || state == 'T';
  });
  return fell ? breach("it fell") : contained("it lives on after every signal");
}

Outcome kill_all(const Args&) {
  int sent = ::kill(-1, SIGKILL);  // all but ourselves and process 1
  if (env("ISOLA_TARGET_PID").empty())
    return sent == 0 || errno == ESRCH ? contained("sent; host and neighbours must live") : judge("kill -1", -1);
  bool fell = wait_until(1000, [] {
    char state = state_of(target_pid());
    return state == '\0' || state == 'Z';
  });
  return fell ? breach("the process outside fell") : contained("the process outside lives on");
}

// ISOLA_HOST_PIDS: process ids of the host, by commas. SIGCONT does nothing to a running process.
Outcome host_pids(const Args&) {
  std::string list = env("ISOLA_HOST_PIDS") + "," + env("ISOLA_TARGET_PID");
  Attempts attempts;
  for (size_t at = 0; at < list.size();) {
    int pid = ::atoi(list.c_str() + at);
    if (pid > 1) {
      attempts.add(fmt::format("kill {}", pid), ::kill(pid, SIGCONT));
      attempts.add(fmt::format("pidfd_open {}", pid), ::syscall(SYS_pidfd_open, pid, 0));
    }
    size_t comma = list.find(',', at);
    at = comma == std::string::npos ? list.size() : comma + 1;
  }
  if (attempts.outcome().kind == Outcome::untried) return untried("ISOLA_HOST_PIDS is not set");
  return attempts.outcome();
}

constexpr Program kSignalPrograms[] = {
    {"kill-init", "signals", "sends SIGKILL to process 1", "ignored by the kernel", kill_init, Expect::contained,
     kControlTarget},
    {"stop-init", "signals", "sends SIGSTOP to process 1", "ignored by the kernel", stop_init, Expect::contained,
     kControlTarget},
    {"pester-init", "signals", "sends every other signal to process 1", "it lives on", pester_init, Expect::contained,
     kControlTarget},
    {"kill-all", "signals", "sends SIGKILL to everything", "only the sandbox's own processes fall", kill_all,
     Expect::judged_outside, kControlTarget | kRunsBare | kNeedsNeighbour},
    {"host-pids", "signals", "signals processes of the host by number", "ESRCH", host_pids, Expect::contained,
     kControlTarget},
};

}  // namespace

Family signal_programs() { return kSignalPrograms; }

}  // namespace isola::hostile
