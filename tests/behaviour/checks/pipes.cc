#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

constexpr Check kPipeChecks[] = {
    {"pipe-eof", "a pipe without writers reads as ended",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       NEED("write", ::write(ends[1], "x", 1));
       ::close(ends[1]);
       char c;
       WANT(::read(ends[0], &c, 1) == 1, "what was in it is lost");
       WANT(::read(ends[0], &c, 1) == 0, "no end of file");
       return ok();
     }},
    {"pipe-broken", "a pipe without readers kills its writer, or answers EPIPE",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       ::close(ends[0]);
       WANT(in_child([&] { return static_cast<int>(::write(ends[1], "x", 1)); }) == 128 + SIGPIPE, "no SIGPIPE");
       ::signal(SIGPIPE, SIG_IGN);
       REFUSED("write", ::write(ends[1], "x", 1), EPIPE);
       return ok();
     }},
    {"pipe-capacity", "a pipe holds 64 KiB, then a writer waits",
     [] {
       int ends[2];
       NEED("pipe2", ::pipe2(ends, O_NONBLOCK));
       std::string block(4096, 'x');
       size_t held = 0;
       for (ssize_t n; (n = ::write(ends[1], block.data(), block.size())) > 0;) held += static_cast<size_t>(n);
       WANT(errno == EAGAIN, "another error than EAGAIN");
       WANT(held == 65536, "it holds another amount");
       return ok();
     }},
    {"pipe-resize", "F_SETPIPE_SZ changes how much a pipe holds",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       WANT(::fcntl(ends[0], F_GETPIPE_SZ) == 65536, "F_GETPIPE_SZ is not 65536");
       NEED("F_SETPIPE_SZ", ::fcntl(ends[0], F_SETPIPE_SZ, 1 << 20));
       WANT(::fcntl(ends[1], F_GETPIPE_SZ) == 1 << 20, "it was not taken");
       return ok();
     }},
    {"pipe-atomic", "small writes of several processes do not mix",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       for (char c : {'a', 'b', 'c'})
         begin_child([&] {
           std::string block(512, c);
           for (int i = 0; i < 20; ++i)
             if (::write(ends[1], block.data(), block.size()) != 512) return 1;
           return 0;
         });
       ::close(ends[1]);
       char block[512];
       size_t at = 0, blocks = 0;
       for (ssize_t n; (n = ::read(ends[0], block + at, sizeof block - at)) > 0;) {
         at += static_cast<size_t>(n);
         if (at < sizeof block) continue;
         for (char c : block) WANT(c == block[0], "two writes are mixed");
         at = 0, ++blocks;
       }
       WANT(blocks == 60 && at == 0, "some bytes are missing");
       return ok();
     }},
    {"pipe-packets", "with O_DIRECT each write is read by itself",
     [] {
       int ends[2];
       NEED("pipe2 O_DIRECT", ::pipe2(ends, O_DIRECT));
       NEED("write", ::write(ends[1], "ab", 2));
       NEED("write", ::write(ends[1], "c", 1));
       char buffer[10];
       WANT(::read(ends[0], buffer, sizeof buffer) == 2, "two packets came at once");
       return ok();
     }},
    {"pipe-waiting-bytes", "FIONREAD tells how many bytes wait",
     [] {
       int ends[2], count = 0;
       NEED("pipe", ::pipe(ends));
       NEED("write", ::write(ends[1], "abc", 3));
       NEED("FIONREAD", ::ioctl(ends[0], FIONREAD, &count));
       WANT(count == 3, "another number");
       return ok();
     }},
    {"pipe-poll", "poll tells of room, of bytes, of an end and of a broken pipe",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       pollfd both[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLOUT, 0}};
       WANT(::poll(both, 2, 0) == 1 && both[1].revents == POLLOUT, "no room in an empty pipe");
       NEED("write", ::write(ends[1], "x", 1));
       WANT(::poll(both, 1, 0) == 1 && both[0].revents == POLLIN, "no bytes");
       ::close(ends[1]);
       WANT(::poll(both, 1, 0) == 1 && both[0].revents == (POLLIN | POLLHUP), "no POLLHUP beside the bytes");
       NEED("pipe", ::pipe(ends));
       ::close(ends[0]);
       pollfd broken{ends[1], POLLOUT, 0};
       WANT(::poll(&broken, 1, 0) == 1 && (broken.revents & POLLERR), "no POLLERR");
       return ok();
     }},
    {"pipe-reopen", "a pipe can be opened again through /proc/self/fd",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       std::string name = "/proc/self/fd/" + std::to_string(ends[0]);
       int again = ::open(name.c_str(), O_RDONLY);
       NEED("open", again);
       NEED("write", ::write(ends[1], "x", 1));
       char c;
       WANT(::read(again, &c, 1) == 1, "nothing came");
       return ok();
     }},
    {"pipe-empty-nonblock", "an empty pipe answers EAGAIN to who does not wait",
     [] {
       int ends[2];
       NEED("pipe2", ::pipe2(ends, O_NONBLOCK));
       char c;
       REFUSED("read", ::read(ends[0], &c, 1), EAGAIN);
       return ok();
     }},
    {"pipe-seek", "a pipe has no position",
     [] {
       int ends[2];
       NEED("pipe", ::pipe(ends));
       REFUSED("lseek", ::lseek(ends[0], 0, SEEK_SET), ESPIPE);
       return ok();
     }},
    {"fifo-waits", "opening a named pipe waits for the other side",
     [] {
       NEED("mkfifo", ::mkfifo("fifo", 0644));
       pid_t writer = begin_child([] {
         int out = ::open("fifo", O_WRONLY);
         return ::write(out, "through", 7) == 7 ? 0 : 1;
       });
       WANT(slurp("fifo") == "through", "other bytes");
       WANT(end_of(writer) == 0, "the writer failed");
       return ok();
     }},
};

}  // namespace

Checks pipe_checks() { return kPipeChecks; }

}  // namespace isola::behaviour
