#include "holder.h"

#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <unistd.h>

namespace isola::hostile {
namespace {

int cannot(const char* what) {
  ::printf("cannot make %s: %s\n", what, ::strerrorname_np(errno));
  return 1;
}

// Says so, and waits for the end of standard input.
void keep() {
  ::puts("holding");
  ::fflush(stdout);
  char byte;
  while (::read(0, &byte, 1) > 0 || errno == EINTR) errno = 0;
}

int hold_ipc() {
  constexpr key_t kKey = 0x15014;  // that sysv-visible asks for by its number
  int memory = ::shmget(kKey, 4096, IPC_CREAT | 0666), semaphore = ::semget(kKey, 1, IPC_CREAT | 0666);
  int messages = ::msgget(kKey, IPC_CREAT | 0666);
  if (memory < 0) return cannot("shared memory");
  if (semaphore < 0) return cannot("a semaphore");
  if (messages < 0) return cannot("a queue of messages");
  mq_attr attr{};
  attr.mq_maxmsg = 1;
  attr.mq_msgsize = 16;
  mqd_t queue = ::mq_open("/isola-neighbour", O_RDWR | O_CREAT, 0666, &attr);
  if (queue == static_cast<mqd_t>(-1)) return cannot("a POSIX queue");
  keep();
  ::shmctl(memory, IPC_RMID, nullptr);
  ::semctl(semaphore, 0, IPC_RMID);
  ::msgctl(messages, IPC_RMID, nullptr);
  ::mq_close(queue);
  ::mq_unlink("/isola-neighbour");
  return 0;
}

int hold_lock() {
  int held = 0;
  for (const char* path : {"/etc/passwd", "/bin/sh", "/usr/bin/env"}) {  // the ones that lock-visible tries
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    held += fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  }
  if (held == 0) return cannot("a lock");
  keep();
  return 0;
}

}  // namespace

int hold(std::string_view what) {
  if (what == "ipc") return hold_ipc();
  if (what == "lock") return hold_lock();
  if (what != "still") return 2;
  keep();
  return 0;
}

}  // namespace isola::hostile
