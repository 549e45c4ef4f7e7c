#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

struct Pty {
  int master = -1, slave = -1;
  std::string name;
};
Pty opened() {
  Pty pty;
  int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  char name[64];
  if (master < 0 || ::grantpt(master) < 0 || ::unlockpt(master) < 0) return pty;
  if (::ptsname_r(master, name, sizeof name) != 0) return pty;
  pty.slave = ::open(name, O_RDWR | O_NOCTTY);
  pty.master = master, pty.name = name;
  return pty;
}
std::string heard(int fd, size_t enough) {
  std::string text;
  char buffer[1024];
  while (text.size() < enough && readable(fd, 5000)) {
    ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}
void raw(int fd) {
  termios t{};
  ::tcgetattr(fd, &t);
  ::cfmakeraw(&t);
  ::tcsetattr(fd, TCSANOW, &t);
}
// A child with the terminal as its own, which has told that it is ready.
template <typename F>
pid_t session(const Pty& pty, F f) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) < 0) return -1;
  pid_t child = begin_child([&] {
    ::setsid();
    if (::ioctl(pty.slave, TIOCSCTTY, 0) < 0) return 101;
    ::close(pty.master);
    return f([&] { (void)!::write(ends[1], "x", 1); });
  });
  char c;
  ::close(ends[1]);
  if (::read(ends[0], &c, 1) != 1) return -1;
  return child;
}

constexpr Check kPtyChecks[] = {
    {"pty-open", "a terminal can be made, and knows that it is one",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       WANT(::isatty(slave) && ::isatty(master), "not a terminal");
       struct stat s{};
       NEED("stat", ::stat(name.c_str(), &s));
       WANT(S_ISCHR(s.st_mode) && name.starts_with("/dev/pts/"), "not in /dev/pts");
       char own_name[64] = "";
       WANT(::ttyname_r(slave, own_name, sizeof own_name) == 0 && name == own_name, "ttyname says another");
       return ok();
     }},
    {"pty-echo", "what is typed is echoed, and read when the line is whole",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       NEED("write", ::write(master, "ab", 2));
       WANT(!readable(slave, 50), "half a line was read");
       NEED("write", ::write(master, "c\n", 2));
       WANT(heard(master, 5) == "abc\r\n", "another echo");
       WANT(heard(slave, 4) == "abc\n", "another line");
       return ok();
     }},
    {"pty-editing", "backspace, and the end of input by ^D",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       NEED("write", ::write(master, "abX\177c\n", 6));
       WANT(heard(slave, 4) == "abc\n", "backspace was not taken");
       NEED("write", ::write(master, "\4", 1));
       char c;
       WANT(readable(slave, 5000) && ::read(slave, &c, 1) == 0, "no end of input");
       return ok();
     }},
    {"pty-raw", "a raw terminal hands every byte over, without echo",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       raw(slave);
       NEED("write", ::write(master, "\3\r", 2));
       WANT(heard(slave, 2) == "\3\r", "other bytes");
       WANT(!readable(master, 50), "an echo");
       NEED("write", ::write(slave, "a\n", 2));
       WANT(heard(master, 2) == "a\n", "output was changed");
       return ok();
     }},
    {"pty-output", "a new line is written as carriage return and new line",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       NEED("write", ::write(slave, "a\nb", 3));
       WANT(heard(master, 4) == "a\r\nb", "other bytes");
       return ok();
     }},
    {"pty-size", "a new size is told by SIGWINCH and TIOCGWINSZ",
     [] {
       Pty pty = opened();
       NEED("posix_openpt", pty.slave);
       pid_t child = session(pty, [&](auto ready) {
         sigset_t set;
         ::sigemptyset(&set);
         ::sigaddset(&set, SIGWINCH);
         ::sigprocmask(SIG_BLOCK, &set, nullptr);
         ready();
         int signal = 0;
         ::sigwait(&set, &signal);
         winsize size{};
         ::ioctl(pty.slave, TIOCGWINSZ, &size);
         return size.ws_row == 33 && size.ws_col == 77 ? 5 : 6;
       });
       NEED("session", child);
       winsize size{33, 77, 0, 0};
       NEED("TIOCSWINSZ", ::ioctl(pty.master, TIOCSWINSZ, &size));
       WANT(end_of(child) == 5, "no signal, or another size");
       return ok();
     }},
    {"pty-interrupt", "^C is SIGINT, ^\\ is SIGQUIT for the group in front",
     [] {
       for (auto [key, signal] : {std::pair{'\3', SIGINT}, std::pair{'\34', SIGQUIT}}) {
         Pty pty = opened();
         NEED("posix_openpt", pty.slave);
         pid_t child = session(pty, [](auto ready) {
           ready();
           return ::pause();
         });
         NEED("session", child);
         NEED("write", ::write(pty.master, &key, 1));
         WANT(end_of(child) == 128 + signal, "another end");
       }
       return ok();
     }},
    {"pty-stop", "^Z stops the group in front",
     [] {
       Pty pty = opened();
       NEED("posix_openpt", pty.slave);
       // An orphaned group is never stopped: the one that stops has a parent in its session.
       pid_t child = session(pty, [&](auto ready) {
         pid_t inner = ::fork();
         if (inner == 0) {
           ::setpgid(0, 0);
           ::signal(SIGTTOU, SIG_IGN);
           ::tcsetpgrp(pty.slave, ::getpid());
           ready();
           for (;;) ::pause();
         }
         int status = 0;
         ::waitpid(inner, &status, WUNTRACED);
         ::kill(inner, SIGKILL);
         return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTSTP ? 5 : 6;
       });
       NEED("session", child);
       NEED("write", ::write(pty.master, "\32", 1));
       WANT(end_of(child) == 5, "it was not stopped");
       return ok();
     }},
    {"pty-hang-up", "closing the master is SIGHUP for the session, and EIO for who reads",
     [] {
       Pty pty = opened();
       NEED("posix_openpt", pty.slave);
       pid_t child = session(pty, [](auto ready) {
         ready();
         return ::pause();
       });
       NEED("session", child);
       ::close(pty.master);
       WANT(end_of(child) == 128 + SIGHUP, "no SIGHUP");
       char c;
       WANT(::read(pty.slave, &c, 1) == 0, "reading does not end");
       REFUSED("write", ::write(pty.slave, "x", 1), EIO);
       return ok();
     }},
    {"pty-slave-closed", "a master whose slaves are all closed reads EIO",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       ::close(slave);
       char c;
       REFUSED("read", ::read(master, &c, 1), EIO);
       return ok();
     }},
    {"pty-controlling", "/dev/tty is the session's terminal, and there is none without one",
     [] {
       REFUSED("open /dev/tty", ::open("/dev/tty", O_RDWR), ENXIO);
       Pty pty = opened();
       NEED("posix_openpt", pty.slave);
       pid_t child = session(pty, [&](auto ready) {
         ready();
         int fd = ::open("/dev/tty", O_RDWR);
         if (fd < 0) return 6;
         return ::tcgetpgrp(fd) == ::getpgrp() && ::tcgetsid(fd) == ::getsid(0) ? 5 : 7;
       });
       int code = end_of(child);
       WANT(code != 6, "it cannot be opened");
       WANT(code == 5, "another group or session");
       return ok();
     }},
    {"pty-background", "a group that is not in front is stopped when it reads",
     [] {
       Pty pty = opened();
       NEED("posix_openpt", pty.slave);
       pid_t child = session(pty, [&](auto ready) {
         ready();
         pid_t inner = ::fork();
         if (inner == 0) {
           ::setpgid(0, 0);
           char c;
           ::_exit(static_cast<int>(::read(pty.slave, &c, 1)));
         }
         int status = 0;
         ::waitpid(inner, &status, WUNTRACED);
         ::kill(inner, SIGKILL);
         return WIFSTOPPED(status) && WSTOPSIG(status) == SIGTTIN ? 5 : 6;
       });
       WANT(end_of(child) == 5, "it was not");
       return ok();
     }},
    {"pty-settings", "settings of a terminal are kept",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       termios t{};
       NEED("tcgetattr", ::tcgetattr(slave, &t));
       t.c_lflag &= ~static_cast<tcflag_t>(ECHO);
       t.c_cc[VMIN] = 3;
       ::cfsetspeed(&t, B9600);
       NEED("tcsetattr", ::tcsetattr(slave, TCSANOW, &t));
       termios again{};
       NEED("tcgetattr", ::tcgetattr(slave, &again));
       WANT(!(again.c_lflag & ECHO) && again.c_cc[VMIN] == 3, "echo or VMIN is another");
       WANT(::cfgetospeed(&again) == B9600, "another speed");
       return ok();
     }},
    {"pty-packet-mode", "in packet mode the master hears of flushes",
     [] {
       auto [master, slave, name] = opened();
       NEED("posix_openpt", slave);
       int on = 1;
       NEED("TIOCPKT", ::ioctl(master, TIOCPKT, &on));
       NEED("write", ::write(slave, "a", 1));
       WANT(heard(master, 2) == std::string("\0a", 2), "no byte in front");
       return ok();
     }},
};

}  // namespace

Checks pty_checks() { return kPtyChecks; }

}  // namespace isola::behaviour
