// IPC objects: how many one can make, and whether somebody else's can be seen.
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

#include <algorithm>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

Outcome many_queues(const Args& args) {
  long goal = args.number(0, 2000), n = 0;
  mq_attr attr{};
  attr.mq_maxmsg = 1;
  attr.mq_msgsize = 16;
  Outcome outcome = breach(fmt::format("{} message queues", goal));
  for (; n < goal; ++n) {
    mqd_t queue = ::mq_open(fmt::format("/isola-{}", n).c_str(), O_RDWR | O_CREAT, 0600, &attr);
    if (queue == static_cast<mqd_t>(-1)) {
      outcome = contained(fmt::format("{} message queues and then {}", n, errno_name(errno)));
      break;
    }
  }
  for (long i = 0; i < n; ++i) ::mq_unlink(fmt::format("/isola-{}", i).c_str());
  return outcome;
}

Outcome many_sysv(const Args& args) {
  long goal = args.number(0, 50000), n = 0;
  std::vector<int> ids;
  Outcome outcome = breach(fmt::format("{} System V message queues", goal));
  for (; n < goal; ++n) {
    int id = ::msgget(IPC_PRIVATE, IPC_CREAT | 0600);
    if (id < 0) {
      outcome = contained(fmt::format("{} System V message queues and then {}", n, errno_name(errno)));
      break;
    }
    ids.push_back(id);
  }
  for (int id : ids) ::msgctl(id, IPC_RMID, nullptr);
  return outcome;
}

// Before anything of our own is made, every line after the first is somebody else's.
Outcome others_sysv(const Args&) {
  Attempts attempts;
  for (const char* path : {"/proc/sysvipc/shm", "/proc/sysvipc/sem", "/proc/sysvipc/msg"}) {
    auto text = slurp(path);
    long lines = text ? std::count(text->begin(), text->end(), '\n') : 0;
    if (!text)
      attempts.add(path, -1);
    else if (lines > 1)
      attempts.worked(fmt::format("{} shows {} of others", path, lines - 1));
    else
      attempts.refused(path, "empty");
  }
  attempts.add("shmget of a known key", ::shmget(0x15014, 0, 0));
  return attempts.outcome();
}

Outcome others_mqueue(const Args&) {
  mqd_t queue = ::mq_open("/isola-neighbour", O_RDWR);
  return judge("open the neighbour's message queue", queue == static_cast<mqd_t>(-1) ? -1 : 0);
}

// Files that all sandboxes share read-only can still be locked: a channel, and a way to make others wait.
Outcome shared_lock(const Args& args) {
  Attempts attempts;
  std::string named = args.text(0, "");
  std::vector<std::string> paths =
      named.empty() ? std::vector<std::string>{"/etc/passwd", "/bin/sh", "/usr/bin/env"} : std::vector{named};
  for (const std::string& path : paths) {
    int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    int locked = ::flock(fd, LOCK_EX | LOCK_NB);
    if (locked != 0 && errno == EWOULDBLOCK)
      attempts.worked(fmt::format("{} is locked by somebody outside", path));
    else
      attempts.refused(path, "the lock is our own");
  }
  if (args.number(1, 0)) ::poll(nullptr, 0, static_cast<int>(args.number(1, 0) * 1000));
  return attempts.outcome();
}

// A lease makes whoever opens the file next wait for us.
Outcome shared_lease(const Args&) {
  Attempts attempts;
  for (const char* path : {"/isola-hostile/isola-hostile", "/proc/self/exe"}) {
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    attempts.add(fmt::format("lease on {}", path), ::fcntl(fd, F_SETLEASE, F_RDLCK));
    ::close(fd);
  }
  return attempts.outcome();
}

constexpr Program kIpcPrograms[] = {
    {"mqueue-exhaustion", "exhaustion", "makes POSIX message queues without end", "EMFILE or ENOSPC at its own limit",
     many_queues, Expect::contained, kNeedsNeighbour, "5"},
    {"sysv-exhaustion", "exhaustion", "makes System V message queues without end", "ENOSPC at its own limit", many_sysv,
     Expect::killed_by_limit, kNeedsNeighbour, "50"},
    {"sysv-visible", "neighbour", "looks for System V objects of others", "none", others_sysv, Expect::contained,
     kNeedsNeighbour | kControlIpc},
    {"mqueue-visible", "neighbour", "opens a message queue that a neighbour made (/isola-neighbour)", "ENOENT",
     others_mqueue, Expect::contained, kNeedsNeighbour | kControlIpc},
    {"lock-visible", "neighbour", "looks whether a neighbour's lock on a file of the template is felt",
     "locks are each sandbox's own", shared_lock, Expect::contained, kNeedsNeighbour | kControlLock, "/locked"},
    {"lease-shared", "neighbour", "takes a lease on a file that the host shares", "EACCES or EPERM", shared_lease},
};

}  // namespace

Family ipc_programs() { return kIpcPrograms; }

}  // namespace isola::hostile
