// Waiting for several things at once.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

struct Watched {
  int epoll = -1, in = -1, out = -1;
};
Watched watched(uint32_t events) {
  int ends[2];
  Watched w;
  if (::pipe2(ends, O_NONBLOCK) < 0) return w;
  w.epoll = ::epoll_create1(EPOLL_CLOEXEC), w.in = ends[0], w.out = ends[1];
  epoll_event event{events, {.u64 = 42}};
  if (::epoll_ctl(w.epoll, EPOLL_CTL_ADD, w.in, &event) < 0) w.epoll = -1;
  return w;
}
int wait_for(int epoll, epoll_event* event, int milliseconds = 0) {
  return ::epoll_wait(epoll, event, 1, milliseconds);
}

constexpr Check kEpollChecks[] = {
    {"epoll-level", "a level-triggered event comes as long as there are bytes, with its data",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN);
       NEED("epoll", epoll);
       epoll_event event{};
       WANT(wait_for(epoll, &event) == 0, "an event without a cause");
       NEED("write", ::write(out, "x", 1));
       for (int i = 0; i < 2; ++i) WANT(wait_for(epoll, &event) == 1 && event.data.u64 == 42, "no event");
       char c;
       NEED("read", ::read(in, &c, 1));
       WANT(wait_for(epoll, &event) == 0, "an event without a cause");
       return ok();
     }},
    {"epoll-edge", "an edge-triggered event comes once for what came",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN | EPOLLET);
       NEED("epoll", epoll);
       epoll_event event{};
       for (int i = 0; i < 2; ++i) {
         NEED("write", ::write(out, "x", 1));
         WANT(wait_for(epoll, &event) == 1, "no event");
         WANT(wait_for(epoll, &event) == 0, "twice");
       }
       return ok();
     }},
    {"epoll-once", "EPOLLONESHOT waits to be armed again",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN | EPOLLONESHOT);
       NEED("epoll", epoll);
       epoll_event event{};
       NEED("write", ::write(out, "x", 1));
       WANT(wait_for(epoll, &event) == 1 && wait_for(epoll, &event) == 0, "not once");
       event = {EPOLLIN | EPOLLONESHOT, {.u64 = 43}};
       NEED("EPOLL_CTL_MOD", ::epoll_ctl(epoll, EPOLL_CTL_MOD, in, &event));
       WANT(wait_for(epoll, &event) == 1 && event.data.u64 == 43, "not armed again");
       return ok();
     }},
    {"epoll-hang-up", "EPOLLHUP comes unasked",
     [] {
       auto [epoll, in, out] = watched(0);
       NEED("epoll", epoll);
       ::close(out);
       epoll_event event{};
       WANT(wait_for(epoll, &event) == 1 && event.events == EPOLLHUP, "it does not");
       return ok();
     }},
    {"epoll-read-hang-up", "EPOLLRDHUP tells that the other side sends no more",
     [] {
       int ends[2], epoll = ::epoll_create1(0);
       NEED("socketpair", ::socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
       epoll_event event{EPOLLIN | EPOLLRDHUP, {}};
       NEED("epoll_ctl", ::epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
       NEED("shutdown", ::shutdown(ends[1], SHUT_WR));
       WANT(wait_for(epoll, &event) == 1 && event.events == (EPOLLIN | EPOLLRDHUP), "other events");
       return ok();
     }},
    {"epoll-errors", "twice: EEXIST; not there: ENOENT; a plain file: EPERM; itself: EINVAL",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN);
       NEED("epoll", epoll);
       epoll_event event{};
       REFUSED("add twice", ::epoll_ctl(epoll, EPOLL_CTL_ADD, in, &event), EEXIST);
       REFUSED("modify", ::epoll_ctl(epoll, EPOLL_CTL_MOD, out, &event), ENOENT);
       REFUSED("a plain file", ::epoll_ctl(epoll, EPOLL_CTL_ADD, scratch_file(), &event), EPERM);
       REFUSED("itself", ::epoll_ctl(epoll, EPOLL_CTL_ADD, epoll, &event), EINVAL);
       return ok();
     }},
    {"epoll-nested", "an epoll can be watched by another",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN);
       NEED("epoll", epoll);
       int outer = ::epoll_create1(0);
       epoll_event event{EPOLLIN, {}};
       NEED("epoll_ctl", ::epoll_ctl(outer, EPOLL_CTL_ADD, epoll, &event));
       NEED("write", ::write(out, "x", 1));
       WANT(wait_for(outer, &event) == 1, "no event");
       return ok();
     }},
    {"epoll-closed", "what is closed is no longer watched",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN);
       NEED("epoll", epoll);
       NEED("write", ::write(out, "x", 1));
       ::close(in);
       epoll_event event{};
       WANT(wait_for(epoll, &event) == 0, "it still is");
       return ok();
     }},
    {"epoll-mask", "epoll_pwait lets a blocked signal in while it waits",
     [] {
       static volatile sig_atomic_t seen = 0;
       ::signal(SIGUSR1, [](int) { seen = 1; });
       sigset_t set, none;
       ::sigemptyset(&none);
       ::sigemptyset(&set);
       ::sigaddset(&set, SIGUSR1);
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       ::raise(SIGUSR1);
       epoll_event event{};
       REFUSED("epoll_pwait", ::epoll_pwait(::epoll_create1(0), &event, 1, 5000, &none), EINTR);
       WANT(seen == 1, "no signal");
       return ok();
     }},
    {"epoll-fine-timeout", "epoll_pwait2 waits for nanoseconds",
     [] {
       epoll_event event{};
       timespec soon{0, 100000};
       long n = ::syscall(SYS_epoll_pwait2, ::epoll_create1(0), &event, 1, &soon, nullptr, 8);
       NEED("epoll_pwait2", n);
       WANT(n == 0, "an event");
       return ok();
     }},
    {"epoll-exclusive", "EPOLLEXCLUSIVE is taken",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN | EPOLLEXCLUSIVE);
       NEED("epoll_ctl", epoll);
       return ok();
     }},
    {"epoll-across-processes", "an event made by another process wakes a waiter",
     [] {
       auto [epoll, in, out] = watched(EPOLLIN);
       NEED("epoll", epoll);
       int far = out;
       begin_child([far] { return static_cast<int>(::usleep(20000) + ::write(far, "x", 1)); });
       epoll_event event{};
       WANT(wait_for(epoll, &event, 10000) == 1, "it slept on");
       return ok();
     }},
    {"poll-closed", "poll says POLLNVAL of a descriptor that is not open, and skips -1",
     [] {
       pollfd two[2] = {{-1, POLLIN, 7}, {1000, POLLIN, 0}};
       WANT(::poll(two, 2, 0) == 1 && two[0].revents == 0 && two[1].revents == POLLNVAL, "other answers");
       return ok();
     }},
    {"poll-file", "a plain file is always ready",
     [] {
       pollfd one{scratch_file(), POLLIN | POLLOUT, 0};
       WANT(::poll(&one, 1, 0) == 1 && one.revents == (POLLIN | POLLOUT), "it is not");
       return ok();
     }},
    {"ppoll-mask", "ppoll lets a blocked signal in while it waits",
     [] {
       ::signal(SIGUSR1, [](int) {});
       sigset_t set, none;
       ::sigemptyset(&none);
       ::sigemptyset(&set);
       ::sigaddset(&set, SIGUSR1);
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       ::raise(SIGUSR1);
       timespec patience{5, 0};
       REFUSED("ppoll", ::ppoll(nullptr, 0, &patience, &none), EINTR);
       return ok();
     }},
    {"select-ready", "select finds what is ready, and its time is what is left",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       NEED("write", ::write(ends[1], "x", 1));
       fd_set set;
       FD_ZERO(&set);
       FD_SET(ends[0], &set);
       timeval time{5, 0};
       WANT(::select(ends[0] + 1, &set, nullptr, nullptr, &time) == 1 && FD_ISSET(ends[0], &set), "not found");
       FD_ZERO(&set);
       ::dup2(0, 60);
       ::close(60);
       FD_SET(60, &set);
       REFUSED("select", ::select(61, &set, nullptr, nullptr, &time), EBADF);
       return ok();
     }},
};

}  // namespace

Checks epoll_checks() { return kEpollChecks; }

}  // namespace isola::behaviour
