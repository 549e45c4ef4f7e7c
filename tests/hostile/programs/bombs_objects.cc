// Memory that the kernel holds for objects, outside of any process's address space: it has to count as well.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// Makes objects with `make` (bytes that it took, or -1), first in this process and, when its descriptors are used up,
// in further children, until `goal` MiB are held at once.
Outcome hoard(long goal_mib, const std::function<long()>& make) {
  long goal = goal_mib << 20;
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  auto* held = static_cast<long*>(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  for (int round = 0; round < 64 && *held < goal; ++round) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0)
      return contained(fmt::format("pipe: {} with {} MiB held", errno_name(errno), *held >> 20));
    pid_t child = ::fork();
    if (child < 0) return contained(fmt::format("fork: {} with {} MiB held", errno_name(errno), *held >> 20));
    if (child == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(ends[0]);
      long before = *held;
      for (long n; *held < goal && (n = make()) > 0;) *held += n;
      char done = *held == before ? 'n' : 'y';
      if (::write(ends[1], &done, 1) != 1) ::_exit(1);
      ::pause();  // holding them
      ::_exit(0);
    }
    ::close(ends[1]);
    char done = 0;
    ssize_t n = ::read(ends[0], &done, 1);
    ::close(ends[0]);
    if (n != 1) return contained(fmt::format("killed with {} MiB held", *held >> 20));
    if (done == 'n') return contained(fmt::format("refused with {} MiB held", *held >> 20));
  }
  return *held >= goal ? breach(fmt::format("{} MiB of kernel memory held", *held >> 20))
                       : contained(fmt::format("only {} MiB in 64 processes", *held >> 20));
}

// What no control group counts is watched by somebody who looks now and then: whoever may end it is given a while, the
// second argument, in seconds.
Outcome held_a_while(const Args& args, const Outcome& outcome) {
  if (outcome.kind == Outcome::breach) ::poll(nullptr, 0, static_cast<int>(args.number(1, 30) * 1000));
  return outcome;
}

Outcome pipes(const Args& args) {
  return hoard(args.number(0, 512), [] {
    static const std::string block(65536, 'x');
    int ends[2];
    if (::pipe2(ends, O_NONBLOCK) != 0) return -1L;
    ::fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
    long total = 0;
    for (ssize_t n; (n = ::write(ends[1], block.data(), block.size())) > 0;) total += n;
    return total;
  });
}

Outcome sockets(const Args& args) {
  return hoard(args.number(0, 512), [] {
    static const std::string block(65536, 'x');
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0) return -1L;
    int size = 1 << 22;
    ::setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    long total = 0;
    for (ssize_t n; (n = ::send(ends[0], block.data(), block.size(), MSG_NOSIGNAL)) > 0;) total += n;
    return total;
  });
}

// What was sent over the loopback and nobody takes: on version 1 of control groups it is no part of the memory limit.
Outcome connections(const Args& args) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET, place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&place), sizeof place) < 0 ||
      ::listen(listener, 4096) < 0 || ::getsockname(listener, reinterpret_cast<sockaddr*>(&place), &size) < 0)
    return untried("no place to listen: " + errno_name(errno));
  return held_a_while(args, hoard(args.number(0, 512), [&] {
                        static const std::string block(65536, 'x');
                        const int one = ::socket(AF_INET, SOCK_STREAM, 0);
                        if (one < 0 || ::connect(one, reinterpret_cast<sockaddr*>(&place), sizeof place) < 0)
                          return -1L;
                        const int other = ::accept(listener, nullptr, nullptr);
                        if (other < 0) return -1L;
                        long total = 0;
                        for (ssize_t n; (n = ::send(one, block.data(), block.size(), MSG_NOSIGNAL | MSG_DONTWAIT)) > 0;)
                          total += n;
                        return total;
                      }));
}

// Small objects, many: about as many bytes each as the kernel takes at least.
Outcome events(const Args& args) {
  return hoard(args.number(0, 512), [] {
    int event = ::eventfd(0, EFD_NONBLOCK);
    int poll = ::epoll_create1(0);
    if (event < 0 || poll < 0) return -1L;
    epoll_event interest{.events = EPOLLIN, .data = {}};
    ::epoll_ctl(poll, EPOLL_CTL_ADD, event, &interest);
    return 1024L;
  });
}

// Descriptors in flight: sent over a socket that nobody reads, they count against no table.
Outcome in_flight(const Args& args) {
  return hoard(args.number(0, 512), [] {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, ends) != 0) return -1L;
    long total = 512;
    for (int i = 0; i < 64; ++i) {
      int fds[64];
      int made = 0;
      for (; made < 64; ++made) {
        if ((fds[made] = ::eventfd(0, 0)) < 0) break;
      }
      alignas(cmsghdr) char control[CMSG_SPACE(sizeof fds)] = {};
      char byte = 0;
      iovec data{&byte, 1};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<size_t>(made));
      auto* head = CMSG_FIRSTHDR(&message);
      head->cmsg_level = SOL_SOCKET;
      head->cmsg_type = SCM_RIGHTS;
      head->cmsg_len = CMSG_LEN(sizeof(int) * static_cast<size_t>(made));
      __builtin_memcpy(CMSG_DATA(head), fds, sizeof(int) * static_cast<size_t>(made));
      ssize_t sent = made ? ::sendmsg(ends[0], &message, MSG_NOSIGNAL) : -1;
      for (int k = 0; k < made; ++k) ::close(fds[k]);
      if (sent < 0) break;
      total += made * 256;
    }
    return total > 512 ? total : -1L;
  });
}

// Locks on ranges of bytes, some 200 bytes each. A file has few of them, since the kernel walks over all of a file's
// for each new one.
Outcome locks(const Args& args, int command, const std::function<int()>& open) {
  return held_a_while(args, hoard(args.number(0, 512), [&] {
                        constexpr int kOfAFile = 1000;
                        const int file = open();
                        long taken = 0;
                        for (; file >= 0 && taken < kOfAFile; ++taken) {
                          struct flock range{
                              .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 2 * taken, .l_len = 1, .l_pid = 0};
                          if (::fcntl(file, command, &range) < 0) break;
                        }
                        return taken > 0 ? taken * 192 : -1L;
                      }));
}

Outcome file_locks(const Args& args) {
  return locks(args, F_SETLK, [] {
    const std::string path = work_dir() + "/isola-locked";
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    ::unlink(path.c_str());
    return file;
  });
}

// They belong to an open file, not to a process, and the file lies on a filesystem that all of the machine have.
Outcome open_file_locks(const Args& args) {
  return locks(args, F_OFD_SETLK, [] { return ::memfd_create("isola-locked", MFD_CLOEXEC); });
}

constexpr Program kObjectBombs[] = {
    {"objects-pipes", "bombs", "fills pipes", "refused or killed at a limit", pipes, Expect::killed_by_limit,
     kNeedsMemoryLimit, "16"},
    {"objects-sockets", "bombs", "fills socket buffers", "refused or killed at a limit", sockets,
     Expect::killed_by_limit, kNeedsMemoryLimit, "16"},
    {"objects-connections", "bombs", "fills connections that nobody reads", "refused or killed at a limit", connections,
     Expect::killed_by_limit, kNeedsMemoryLimit, "16 0"},
    {"objects-events", "bombs", "makes eventfds and epolls without end", "refused or killed at a limit", events,
     Expect::killed_by_limit, kNeedsMemoryLimit, "2"},
    {"objects-in-flight", "bombs", "hides descriptors in sockets that nobody reads", "ETOOMANYREFS, or killed",
     in_flight, Expect::killed_by_limit, kNeedsMemoryLimit, "2"},
    {"objects-locks", "bombs", "locks ranges of files without end", "killed: locks are watched", file_locks,
     Expect::killed_by_limit, kNeedsMemoryLimit, "2 0"},
    {"objects-locks-open", "bombs", "locks ranges of files in memory, for no process, without end",
     "killed: locks are watched", open_file_locks, Expect::killed_by_limit, kNeedsMemoryLimit, "2 0"},
};

}  // namespace

Family object_bombs() { return kObjectBombs; }

}  // namespace isola::hostile
