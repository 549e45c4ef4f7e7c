// Tables of the kernel that all share unless each sandbox has a share of its own. First argument: how many; second:
// for how many seconds at most to hold them, so that a neighbour can be asked meanwhile; SIGUSR1 says that it was.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

void raise_soft_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
}

Outcome take(const Args& args, long goal, const char* what, const std::function<int()>& one) {
  raise_soft_limit();
  goal = args.number(0, goal);
  long n = 0;
  int why = 0;
  for (; n < goal; ++n) {
    if (one() >= 0) continue;
    why = errno;
    break;
  }
  if (args.number(1, 0)) {
    struct sigaction asked{};
    asked.sa_handler = [](int) {};
    ::sigaction(SIGUSR1, &asked, nullptr);
    ::printf("holding %ld\n", n);
    ::fflush(stdout);
    ::poll(nullptr, 0, static_cast<int>(args.number(1, 0) * 1000));
  }
  if (n == goal) return breach(fmt::format("{} {}", n, what));
  if (why == ENFILE) return breach(fmt::format("the whole machine is out of {} after {}", what, n));
  return contained(fmt::format("{} {} and then {}", n, what, errno_name(why)));
}

Outcome descriptors(const Args& args) {
  return take(args, 300000, "descriptors", [] { return ::open("/", O_PATH | O_CLOEXEC); });
}

Outcome inotify_instances(const Args& args) {
  return take(args, 1000, "inotify instances", [] { return ::inotify_init1(IN_CLOEXEC); });
}

Outcome inotify_watches(const Args& args) {
  int notify = ::inotify_init1(IN_CLOEXEC);
  if (notify < 0) return contained("inotify: " + errno_name(errno));
  std::string top = work_dir() + "/isola-watches";
  ::mkdir(top.c_str(), 0755);
  long n = 0;
  Outcome outcome = take(args, 300000, "inotify watches", [&] {
    std::string folder = fmt::format("{}/{}", top, n++);
    if (::mkdir(folder.c_str(), 0755) != 0 && errno != EEXIST) return -1;
    return ::inotify_add_watch(notify, folder.c_str(), IN_MODIFY);
  });
  return outcome;
}

// Asked in one sandbox while another holds all that it could get.
Outcome own_share(const Args&) {
  int instances = 0;
  for (; instances < 8; ++instances) {
    if (::inotify_init1(IN_CLOEXEC) < 0) break;
  }
  if (instances < 8)
    return breach(fmt::format("only {} inotify instances are left for us: {}", instances, errno_name(errno)));
  int notify = ::inotify_init1(IN_CLOEXEC);
  int watch = ::inotify_add_watch(notify, "/", IN_MODIFY);
  if (watch < 0) return breach("no inotify watch is left for us: " + errno_name(errno));
  int pty = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (pty < 0) return breach("no terminal is left for us: " + errno_name(errno));
  return contained("the neighbour took nothing of ours");
}

Outcome terminals(const Args& args) {
  return take(args, 2500, "terminals", [] { return ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC); });
}

constexpr Program kExhaustPrograms[] = {
    {"fd-exhaustion", "exhaustion", "opens descriptors without end", "EMFILE at its own limit", descriptors,
     Expect::killed_by_limit, kNeedsMemoryLimit | kNeedsNeighbour, "500"},
    {"inotify-instances", "exhaustion", "takes inotify instances without end", "EMFILE at its own limit",
     inotify_instances, Expect::contained, kNeedsNeighbour, "10"},
    {"inotify-watches", "exhaustion", "takes inotify watches without end", "ENOSPC at its own limit", inotify_watches,
     Expect::killed_by_limit, kNeedsNeighbour | kSlow | kNeedsMemoryLimit, "500"},
    {"pty-exhaustion", "exhaustion", "takes terminals without end", "ENOSPC at its own limit", terminals,
     Expect::killed_by_limit, kNeedsNeighbour, "20"},
    {"own-share", "exhaustion", "is the neighbour: asks for inotify instances, a watch and a terminal", "gets them",
     own_share, Expect::contained, kNeedsNeighbour, "",
     "starving the machine's own root of them would harm others on it"},
};

}  // namespace

Family exhaust_programs() { return kExhaustPrograms; }

}  // namespace isola::hostile
