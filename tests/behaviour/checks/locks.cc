#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

int record(int fd, int command, short type, off_t start = 0, off_t length = 0) {
  struct flock lock{};
  lock.l_type = type, lock.l_whence = SEEK_SET, lock.l_start = start, lock.l_len = length;
  return ::fcntl(fd, command, &lock);
}
// In another process, on a descriptor of its own.
int elsewhere(int command, short type, off_t start = 0, off_t length = 0) {
  return in_child([=] {
    int fd = ::open("file", O_RDWR);
    return record(fd, command, type, start, length) < 0 ? errno : 0;
  });
}

constexpr Check kLockChecks[] = {
    {"flock-exclusive", "an exclusive flock has one owner, until it closes",
     [] {
       int one = scratch_file(), two = ::open("file", O_RDWR);
       NEED("flock", ::flock(one, LOCK_EX));
       REFUSED("flock", ::flock(two, LOCK_EX | LOCK_NB), EWOULDBLOCK);
       ::close(one);
       NEED("flock", ::flock(two, LOCK_EX | LOCK_NB));
       return ok();
     }},
    {"flock-shared", "shared flocks go together, and become exclusive when alone",
     [] {
       int one = scratch_file(), two = ::open("file", O_RDONLY);
       NEED("flock", ::flock(one, LOCK_SH));
       NEED("flock", ::flock(two, LOCK_SH | LOCK_NB));
       REFUSED("flock", ::flock(one, LOCK_EX | LOCK_NB), EWOULDBLOCK);
       NEED("flock", ::flock(two, LOCK_UN));
       NEED("flock", ::flock(one, LOCK_EX | LOCK_NB));
       return ok();
     }},
    {"flock-inherited", "a child has the lock of its parent, and keeps it",
     [] {
       int fd = scratch_file(), other = ::open("file", O_RDWR);
       NEED("flock", ::flock(fd, LOCK_EX));
       begin_child([] { return ::pause(); });
       ::close(fd);
       REFUSED("flock", ::flock(other, LOCK_EX | LOCK_NB), EWOULDBLOCK);
       return ok();
     }},
    {"flock-wait", "who waits for a flock gets it when it is free",
     [] {
       int fd = scratch_file();
       NEED("flock", ::flock(fd, LOCK_EX));
       pid_t child = begin_child([] {
         int own_fd = ::open("file", O_RDWR);
         return ::flock(own_fd, LOCK_EX) == 0 ? 4 : 5;
       });
       ::usleep(20000);
       NEED("flock", ::flock(fd, LOCK_UN));
       WANT(end_of(child) == 4, "it does not");
       return ok();
     }},
    {"lock-ranges", "record locks hold for their bytes and for other processes",
     [] {
       int fd = scratch_file(std::string(100, 'x'));
       NEED("F_SETLK", record(fd, F_SETLK, F_WRLCK, 10, 10));
       WANT(elsewhere(F_SETLK, F_WRLCK, 15, 1) == EAGAIN, "another process got a byte of it");
       WANT(elsewhere(F_SETLK, F_WRLCK, 20, 10) == 0, "bytes beside it are locked");
       NEED("F_SETLK", record(fd, F_SETLK, F_UNLCK, 12, 2));
       WANT(elsewhere(F_SETLK, F_WRLCK, 12, 2) == 0, "the middle is still locked");
       WANT(elsewhere(F_SETLK, F_WRLCK, 14, 2) == EAGAIN, "the rest is free");
       return ok();
     }},
    {"lock-owner", "F_GETLK tells who has it",
     [] {
       int fd = scratch_file();
       NEED("F_SETLK", record(fd, F_SETLK, F_WRLCK, 3, 4));
       pid_t owner = ::getpid();
       int code = in_child([=] {
         struct flock lock{};
         lock.l_type = F_WRLCK;
         ::fcntl(fd, F_GETLK, &lock);
         return lock.l_type == F_WRLCK && lock.l_pid == owner && lock.l_start == 3 && lock.l_len == 4 ? 5 : 6;
       });
       WANT(code == 5, "somebody else, or other bytes");
       return ok();
     }},
    {"lock-lost-by-close", "a process loses its record locks when it closes any descriptor of the file",
     [] {
       int fd = scratch_file();
       NEED("F_SETLK", record(fd, F_SETLK, F_WRLCK));
       ::close(::open("file", O_RDONLY));
       WANT(elsewhere(F_SETLK, F_WRLCK) == 0, "it keeps them");
       return ok();
     }},
    {"lock-wait", "F_SETLKW waits, and a signal ends that",
     [] {
       int fd = scratch_file();
       NEED("F_SETLK", record(fd, F_SETLK, F_WRLCK));
       pid_t child = begin_child([] {
         struct sigaction action{};
         action.sa_handler = [](int) {};
         ::sigaction(SIGALRM, &action, nullptr);
         ::ualarm(20000, 20000);
         int own_fd = ::open("file", O_RDWR);
         return record(own_fd, F_SETLKW, F_WRLCK) < 0 && errno == EINTR ? 4 : 5;
       });
       WANT(end_of(child) == 4, "it does not");
       return ok();
     }},
    {"lock-deadlock", "two that wait for each other: one is told EDEADLK",
     [] {
       int fd = scratch_file(), ends[2];
       NEED("pipe", ::pipe(ends));
       NEED("F_SETLK", record(fd, F_SETLK, F_WRLCK, 0, 1));
       pid_t child = begin_child([&] {
         int own_fd = ::open("file", O_RDWR);
         if (record(own_fd, F_SETLK, F_WRLCK, 1, 1) < 0) return 1;
         (void)!::write(ends[1], "x", 1);
         return record(own_fd, F_SETLKW, F_WRLCK, 0, 1) < 0 ? errno : 0;
       });
       char c;
       NEED("read", ::read(ends[0], &c, 1));
       struct sigaction action{};
       action.sa_handler = [](int) {};
       ::sigaction(SIGALRM, &action, nullptr);
       ::alarm(5);
       int code = record(fd, F_SETLKW, F_WRLCK, 1, 1) < 0 ? errno : 0;
       if (code == EINTR) return differs("they wait for ever");
       record(fd, F_SETLK, F_UNLCK, 0, 1);
       int other = end_of(child);
       WANT(code == EDEADLK || other == EDEADLK, "neither is");
       return ok();
     }},
    {"lock-open-file", "locks of the open file hold within one process, and are inherited",
     [] {
       int one = scratch_file(), two = ::open("file", O_RDWR);
       NEED("F_OFD_SETLK", record(one, F_OFD_SETLK, F_WRLCK));
       REFUSED("F_OFD_SETLK", record(two, F_OFD_SETLK, F_WRLCK), EAGAIN);
       ::close(::open("file", O_RDONLY));
       REFUSED("F_OFD_SETLK", record(two, F_OFD_SETLK, F_WRLCK), EAGAIN);
       ::close(one);
       NEED("F_OFD_SETLK", record(two, F_OFD_SETLK, F_WRLCK));
       return ok();
     }},
    {"lock-lease", "a lease is broken by who opens the file",
     [] {
       int fd = scratch_file();
       ::signal(SIGIO, SIG_IGN);
       NEED("F_SETLEASE", ::fcntl(fd, F_SETLEASE, F_WRLCK));
       int code = in_child([] { return ::open("file", O_RDWR | O_NONBLOCK) < 0 ? errno : 0; });
       WANT(code == EWOULDBLOCK, "it was opened");
       return ok();
     }},
};

}  // namespace

Checks lock_checks() { return kLockChecks; }

}  // namespace isola::behaviour
