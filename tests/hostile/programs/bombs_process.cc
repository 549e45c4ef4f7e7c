// Processes without end. Each stops by itself at a count (first argument).
#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// Children that wait until we are gone.
Outcome fork_bomb(const Args& args) {
  long goal = args.number(0, 2000);
  pid_t self = ::getpid();
  for (long n = 0; n < goal; ++n) {
    pid_t child = ::fork();
    if (child < 0) return contained(fmt::format("fork: {} after {}", errno_name(errno), n));
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (::getppid() == self) ::pause();
      ::_exit(0);
    }
  }
  return breach(fmt::format("{} processes", goal));
}

// The real one: every child forks too. Counters that all share and a deadline bound it where nothing else does.
Outcome fork_tree(const Args& args) {
  struct Shared {
    std::atomic<long> made, refused;
  };
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return untried("mmap: " + errno_name(errno));
  auto* shared = static_cast<Shared*>(memory);
  long goal = args.number(0, 2000), end = now_ms() + 3000;
  pid_t first = ::getpid();
  while (now_ms() < end && shared->refused == 0 && shared->made++ < goal) {
    pid_t child = ::fork();
    if (child < 0) ++shared->refused;
    if (child == 0) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  }
  if (::getpid() != first) {
    while (now_ms() < end) ::poll(nullptr, 0, 100);
    ::_exit(0);
  }
  if (shared->refused > 0) return contained(fmt::format("fork refused after {}", shared->made.load()));
  return shared->made >= goal ? breach(fmt::format("a tree of {} processes", goal)) : untried("not reached within 3 s");
}

void* sleeper(void*) {
  ::pause();
  return nullptr;
}

Outcome thread_bomb(const Args& args) {
  long goal = args.number(0, 5000);
  pthread_attr_t attr;
  ::pthread_attr_init(&attr);
  ::pthread_attr_setstacksize(&attr, 32768);
  for (long n = 0; n < goal; ++n) {
    pthread_t thread;
    int error = ::pthread_create(&thread, &attr, sleeper, nullptr);
    if (error) return contained(fmt::format("thread: {} after {}", errno_name(error), n));
  }
  return breach(fmt::format("{} threads", goal));
}

Outcome zombie_flood(const Args& args) {
  long goal = args.number(0, 5000);
  for (long n = 0; n < goal; ++n) {
    pid_t child = ::fork();
    if (child < 0) return contained(fmt::format("fork: {} after {} zombies", errno_name(errno), n));
    if (child == 0) ::_exit(0);
  }
  return breach(fmt::format("{} zombies", goal));
}

long orphans_dead() {
  long count = 0;
  for (int pid : all_pids()) {
    auto text = slurp(fmt::format("/proc/{}/stat", pid));
    size_t at = text ? text->rfind(')') : std::string::npos;
    int parent = 0;
    char state = 0;
    if (at != std::string::npos && ::sscanf(text->c_str() + at + 1, " %c %d", &state, &parent) == 2 && state == 'Z' &&
        parent == 1)
      ++count;
  }
  return count;
}

// Orphans become children of process 1, which has to collect them: more than a sandbox of this suite may have at a
// time.
Outcome orphan_flood(const Args& args) {
  long goal = args.number(0, 400);
  for (long n = 0; n < goal; ++n) {
    pid_t child = ::fork();
    if (child < 0) return breach(fmt::format("orphans fill the sandbox: fork {} after {}", errno_name(errno), n));
    if (child == 0) {
      if (::fork() < 0) ::_exit(1);
      ::_exit(0);  // the grandchild too, at once
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 1) wait_until(1000, [] { return orphans_dead() == 0; });
  }
  if (wait_until(2000, [] { return orphans_dead() == 0; })) return contained("process 1 collects them");
  return breach(fmt::format("{} dead orphans lie about", orphans_dead()));
}

// A daemon that leaves its session and its parent, and goes on when the command is over.
Outcome daemon_outlives(const Args& args) {
  long seconds = args.number(0, 60);
  std::string path = work_dir() + "/isola-daemon.pid";
  ::unlink(path.c_str());
  pid_t command = ::fork();
  if (command < 0) return contained("fork: " + errno_name(errno));
  if (command == 0) {
    ::setpgid(0, 0);
    if (::fork() == 0) {
      ::setsid();
      if (::fork() == 0) {
        FILE* file = ::fopen(path.c_str(), "w");
        if (file) {
          ::fprintf(file, "%d", ::getpid());
          ::fclose(file);
        }
        for (int fd = 0; fd < 3; ++fd) ::close(fd);
        ::alarm(static_cast<unsigned>(seconds));
        ::pause();
      }
      ::_exit(0);
    }
    ::pause();
  }
  ::setpgid(command, command);
  bool started = wait_until(2000, [&] {
    auto text = slurp(path);
    return text && !text->empty();
  });
  if (!started) return untried("the daemon did not start");
  int daemon = ::atoi(slurp(path).value_or("0").c_str());
  ::kill(-command, SIGKILL);  // what stops a process group only
  ::waitpid(command, nullptr, 0);
  bool alive = ::kill(daemon, 0) == 0;
  // Alone, it has outlived the kill of its group. Inside, the runner looks whether it outlives the command or the
  // sandbox.
  if (args.number(1, 0) && alive) return breach(fmt::format("daemon {} lives on after its group was killed", daemon));
  return contained(
      fmt::format("daemon {} is left behind; it must be gone when the command or the sandbox is killed", daemon));
}

// Deaf to everything that can be ignored.
Outcome ignore_signals(const Args& args) {
  long seconds = args.number(0, 600);
  for (int signal = 1; signal < 65; ++signal) ::signal(signal, SIG_IGN);
  wait_until(seconds * 1000, [] { return false; });
  return breach(fmt::format("nobody stopped it in {} s", seconds));
}

Outcome busy_loop(const Args& args) {
  long end = now_ms() + args.number(0, 600) * 1000;
  volatile unsigned long spin = 0;
  while (now_ms() < end) {
    for (int i = 0; i < 100000; ++i) spin = spin + 1;
  }
  return breach("nobody stopped it");
}

constexpr Program kProcessBombs[] = {
    {"fork-bomb", "bombs", "forks without end", "fork: EAGAIN at the limit", fork_bomb, Expect::killed_by_limit,
     kNeedsPidsLimit | kNeedsNeighbour, "100"},
    {"fork-tree", "bombs", "forks from every child", "fork: EAGAIN at the limit", fork_tree, Expect::killed_by_limit,
     kNeedsPidsLimit | kNeedsNeighbour, "100"},
    {"thread-bomb", "bombs", "starts threads without end", "EAGAIN at the limit", thread_bomb, Expect::killed_by_limit,
     kNeedsPidsLimit, "100"},
    {"zombie-flood", "bombs", "leaves dead children uncollected", "fork: EAGAIN at the limit", zombie_flood,
     Expect::killed_by_limit, kNeedsPidsLimit, "100"},
    {"orphan-flood", "bombs", "leaves dead orphans to process 1", "process 1 collects them", orphan_flood,
     Expect::contained, kNeedsPidsLimit, "100"},
    {"daemon-outlives", "bombs", "leaves its group and session and outlives the command",
     "dead with the command or the sandbox", daemon_outlives, Expect::judged_outside, 0, "20 1"},
    {"ignore-signals", "bombs", "ignores every signal and does not end", "killed at the timeout", ignore_signals,
     Expect::times_out, kSlow, "1"},
    {"busy-loop", "bombs", "computes without end", "killed at the timeout", busy_loop, Expect::times_out,
     kSlow | kNeedsNeighbour, "1"},
};

}  // namespace

Family process_bombs() { return kProcessBombs; }

}  // namespace isola::hostile
