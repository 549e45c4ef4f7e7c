// Descriptors that are something else than files.
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

int open_pid(pid_t pid, unsigned flags = 0) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, flags)); }

constexpr Check kDescriptorChecks[] = {
    {"eventfd-counter", "an eventfd adds up, and a read takes it all",
     [] {
       int fd = ::eventfd(2, EFD_NONBLOCK);
       NEED("eventfd", fd);
       uint64_t value = 3;
       NEED("write", ::write(fd, &value, 8));
       WANT(::read(fd, &value, 8) == 8 && value == 5, "another sum");
       REFUSED("read", ::read(fd, &value, 8), EAGAIN);
       return ok();
     }},
    {"eventfd-semaphore", "as a semaphore it gives one at a time",
     [] {
       int fd = ::eventfd(2, EFD_NONBLOCK | EFD_SEMAPHORE);
       NEED("eventfd", fd);
       uint64_t value = 0;
       for (int i = 0; i < 2; ++i) WANT(::read(fd, &value, 8) == 8 && value == 1, "not one");
       REFUSED("read", ::read(fd, &value, 8), EAGAIN);
       return ok();
     }},
    {"signalfd-reads", "a signalfd tells signals and who sent them",
     [] {
       sigset_t set;
       ::sigemptyset(&set);
       ::sigaddset(&set, SIGUSR1);
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       int fd = ::signalfd(-1, &set, SFD_NONBLOCK);
       NEED("signalfd", fd);
       WANT(!readable(fd, 0), "ready without a signal");
       ::kill(::getpid(), SIGUSR1);
       WANT(readable(fd, 1000), "not ready");
       signalfd_siginfo info{};
       WANT(::read(fd, &info, sizeof info) == sizeof info, "another size");
       WANT(info.ssi_signo == SIGUSR1 && info.ssi_pid == static_cast<uint32_t>(::getpid()), "another signal");
       return ok();
     }},
    {"signalfd-child", "a child's end comes through a signalfd",
     [] {
       sigset_t set;
       ::sigemptyset(&set);
       ::sigaddset(&set, SIGCHLD);
       ::sigprocmask(SIG_BLOCK, &set, nullptr);
       int fd = ::signalfd(-1, &set, 0);
       NEED("signalfd", fd);
       pid_t child = begin_child([] { return 3; });
       signalfd_siginfo info{};
       WANT(::read(fd, &info, sizeof info) == sizeof info, "another size");
       WANT(info.ssi_pid == static_cast<uint32_t>(child) && info.ssi_status == 3, "another child");
       return ok();
     }},
    {"timerfd-counts", "a timerfd counts how often it ran out",
     [] {
       int fd = ::timerfd_create(CLOCK_MONOTONIC, 0);
       NEED("timerfd_create", fd);
       itimerspec often{{0, 5000000}, {0, 5000000}};
       NEED("timerfd_settime", ::timerfd_settime(fd, 0, &often, nullptr));
       ::usleep(50000);
       uint64_t count = 0;
       WANT(::read(fd, &count, 8) == 8 && count >= 5, "too seldom");
       return ok();
     }},
    {"timerfd-absolute", "a time that is past runs out at once; disarmed it says what was left",
     [] {
       int fd = ::timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
       NEED("timerfd_create", fd);
       itimerspec past{{}, {1, 0}}, later{{}, {100, 0}}, off{}, left{};
       NEED("timerfd_settime", ::timerfd_settime(fd, TFD_TIMER_ABSTIME, &past, nullptr));
       WANT(readable(fd, 1000), "it did not run out");
       NEED("timerfd_settime", ::timerfd_settime(fd, 0, &later, nullptr));
       NEED("timerfd_settime", ::timerfd_settime(fd, 0, &off, &left));
       WANT(left.it_value.tv_sec >= 98 && left.it_value.tv_sec <= 100, "another rest");
       return ok();
     }},
    {"memfd-file", "a memfd is a file without a name on disk",
     [] {
       int fd = ::memfd_create("something", MFD_CLOEXEC);
       NEED("memfd_create", fd);
       NEED("ftruncate", ::ftruncate(fd, 8192));
       struct stat s{};
       ::fstat(fd, &s);
       WANT(s.st_size == 8192 && s.st_nlink == 0, "another size, or links");
       char name[100] = "";
       NEED("readlink", ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof name - 1));
       WANT(std::string(name) == "/memfd:something (deleted)", "another name in /proc");
       return ok();
     }},
    {"memfd-seals", "a sealed memfd can be neither written nor resized",
     [] {
       int fd = ::memfd_create("sealed", MFD_ALLOW_SEALING);
       NEED("memfd_create", fd);
       NEED("write", ::write(fd, "abc", 3));
       NEED("F_ADD_SEALS", ::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL));
       REFUSED("write", ::pwrite(fd, "x", 1, 0), EPERM);
       REFUSED("ftruncate", ::ftruncate(fd, 1), EPERM);
       void* at = ::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0);
       REFUSED("mmap", at == MAP_FAILED ? -1 : 0, EPERM);
       return ok();
     }},
    {"pidfd-poll", "a pidfd becomes readable when the process ends",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       pid_t child = begin_child([&] {
         char c;
         return static_cast<int>(::read(ends[0], &c, 1));
       });
       int fd = open_pid(child);
       NEED("pidfd_open", fd);
       WANT(!readable(fd, 0), "too early");
       NEED("write", ::write(ends[1], "x", 1));
       WANT(readable(fd, 10000), "never");
       siginfo_t info{};
       NEED("waitid P_PIDFD", ::waitid(static_cast<idtype_t>(3), static_cast<id_t>(fd), &info, WEXITED));
       WANT(info.si_pid == child && info.si_status == 1, "another end");
       return ok();
     }},
    {"pidfd-signal", "pidfd_send_signal reaches the process",
     [] {
       pid_t child = begin_child([] { return ::pause(); });
       int fd = open_pid(child);
       NEED("pidfd_open", fd);
       NEED("pidfd_send_signal", ::syscall(SYS_pidfd_send_signal, fd, SIGKILL, nullptr, 0));
       WANT(end_of(child) == 128 + SIGKILL, "another end");
       return ok();
     }},
    {"pidfd-get-file", "pidfd_getfd takes a descriptor of a child",
     [] {
       int file = scratch_file("abc");
       pid_t child = begin_child([] { return ::pause(); });
       int fd = open_pid(child);
       NEED("pidfd_open", fd);
       int got = static_cast<int>(::syscall(SYS_pidfd_getfd, fd, file, 0));
       NEED("pidfd_getfd", got);
       char text[4] = "";
       WANT(::pread(got, text, 3, 0) == 3 && std::string(text) == "abc", "another file");
       return ok();
     }},
    {"fd-lowest", "open and dup give the lowest free number, F_DUPFD one not below",
     [] {
       int a = ::dup(0), b = ::dup(0);
       ::close(a);
       WANT(::open("/dev/null", O_RDONLY) == a, "not the lowest");
       int high = ::fcntl(b, F_DUPFD_CLOEXEC, 100);
       WANT(high == 100 && ::fcntl(high, F_GETFD) == FD_CLOEXEC, "F_DUPFD_CLOEXEC");
       REFUSED("dup3", ::dup3(a, a, 0), EINVAL);
       return ok();
     }},
    {"fd-close-range", "close_range closes a range, or marks it",
     [] {
       for (int i = 0; i < 10; ++i) ::dup2(0, 100 + i);
       NEED("close_range", ::syscall(SYS_close_range, 100, 104, 0));
       WANT(::fcntl(104, F_GETFD) < 0 && ::fcntl(105, F_GETFD) == 0, "others were closed");
       NEED("close_range", ::syscall(SYS_close_range, 105, 200, CLOSE_RANGE_CLOEXEC));
       WANT(::fcntl(109, F_GETFD) == FD_CLOEXEC, "not marked");
       return ok();
     }},
    {"fd-flags", "O_NONBLOCK and O_APPEND can be changed later, the access mode cannot",
     [] {
       int fd = scratch_file("abc");
       NEED("F_SETFL", ::fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND | O_WRONLY));
       int flags = ::fcntl(fd, F_GETFL);
       WANT((flags & (O_NONBLOCK | O_APPEND)) == (O_NONBLOCK | O_APPEND), "not set");
       WANT((flags & O_ACCMODE) == O_RDWR, "the access mode changed");
       return ok();
     }},
    {"fd-async", "O_ASYNC sends SIGIO when bytes come",
     [] {
       static volatile sig_atomic_t seen = 0;
       ::signal(SIGIO, [](int) { seen = 1; });
       int ends[2];
       NEED("pipe", ::pipe(ends));
       NEED("F_SETOWN", ::fcntl(ends[0], F_SETOWN, ::getpid()));
       NEED("F_SETFL", ::fcntl(ends[0], F_SETFL, O_ASYNC));
       NEED("write", ::write(ends[1], "x", 1));
       for (int i = 0; i < 1000 && !seen; ++i) ::usleep(1000);
       WANT(seen == 1, "no SIGIO");
       return ok();
     }},
    {"fd-dev", "/dev/fd and /dev/stdin lead to the descriptors",
     [] {
       int fd = scratch_file("abc");
       WANT(slurp("/dev/fd/" + std::to_string(fd)) == "abc", "/dev/fd");
       ::dup2(fd, 0);
       WANT(slurp("/dev/stdin") == "abc", "/dev/stdin");
       return ok();
     }},
    {"fd-thousands", "a process has thousands of descriptors",
     [] {
       for (int i = 0; i < 4000; ++i) NEED("dup", ::dup(0));
       return ok();
     }},
};

}  // namespace

Checks descriptor_checks() { return kDescriptorChecks; }

}  // namespace isola::behaviour
