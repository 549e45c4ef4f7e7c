// A real isola-guest as pid 1 of its own pid and mount namespace, for tests: made, driven, and gone with the object.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/mark.h"
#include "guest/client.h"

#define ASSERT_OK(result)                                          \
  do {                                                             \
    auto& r_ = (result);                                           \
    ASSERT_TRUE(r_.has_value()) << (r_ ? "" : r_.error().message); \
  } while (0)

namespace isola::guest {

class TestGuest {
 public:
  static constexpr char kId[] = "i0123456789abcdefghij";
  static constexpr char kFormerId[] = "ijihgfedcba9876543210";

  enum class Form {
    pipes,
    stdio,    // its stream begins with mark()
    relay,    // a relay outside, and as its "engine" a guest with stdio
    packets,  // the same, with packets between them
    named,    // as relay, but the relay gives it its name
    // The "engine" is a guest that was another sandbox's, and has another mark: as after a restore.
    renamed,
  };
  static std::string mark() { return std::string("isola-test: a mark of 32 bytes...").substr(0, kMarkSize); }

  // `flags` are further namespaces for clone.
  explicit TestGuest(int flags = 0, Form form = Form::pipes) {
    int in[2], out[2];
    if (::pipe2(in, O_CLOEXEC) < 0 || ::pipe2(out, O_CLOEXEC) < 0) std::abort();
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) < 0) std::abort();
    pid_ = static_cast<pid_t>(::syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | flags | SIGCHLD, 0, 0, 0, 0));
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that is killed leaves no guest behind
      char c;
      ::close(ready[1]);
      (void)!::read(ready[0], &c, 1);  // until the id maps are written
      if (flags & CLONE_NEWUSER && (::setresgid(0, 0, 0) < 0 || ::setresuid(0, 0, 0) < 0)) ::_exit(97);
      ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
      if (::mount("proc", "/proc", "proc", 0, nullptr) < 0) ::_exit(99);
      // As in the jail's bounding set: with CAP_SYS_PTRACE nothing is closed to root inside.
      if (flags & CLONE_NEWUSER) ::prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE);
      // Numbers that the four may have now are moved out of the way first.
      int high[4] = {::fcntl(in[0], F_DUPFD, 100), ::fcntl(out[1], F_DUPFD, 100), ::fcntl(in[1], F_DUPFD, 100),
                     ::fcntl(out[0], F_DUPFD, 100)};
      if (form == Form::stdio) {
        ::dup2(high[0], 0);
        ::dup2(high[1], 1);
        ::syscall(SYS_close_range, 3, ~0U, 0);
        ::execl(ISOLA_GUEST_BINARY, "isola-guest", "--id", kId, "--stdio", nullptr);
      } else {
        for (int i = 0; i < 4; ++i) ::dup2(high[i], 3 + i);
        ::syscall(SYS_close_range, 7, ~0U, 0);
        if (form == Form::relay)
          ::execl(ISOLA_GUEST_BINARY, "isola-guest", "--relay", "--", ISOLA_GUEST_BINARY, "--id", kId, "--stdio",
                  nullptr);
        if (form == Form::named)
          ::execl(ISOLA_GUEST_BINARY, "isola-guest", "--relay", "--name", kId, "--", ISOLA_GUEST_BINARY, "--stdio",
                  nullptr);
        if (form == Form::renamed) {
          const std::string line = "(printf '%s' '" + mark() + "'; exec cat) | exec " ISOLA_GUEST_BINARY " --id " +
                                   std::string(kFormerId) + " --stdio";
          ::execl(ISOLA_GUEST_BINARY, "isola-guest", "--relay", "--rename", kId, "--", "/bin/sh", "-c", line.c_str(),
                  nullptr);
        }
        if (form == Form::packets) {
          int null = ::open("/dev/null", O_RDWR);  // for the network, which this "engine" has no use for
          ::dup2(null, 8);
          ::execl(ISOLA_GUEST_BINARY, "isola-guest", "--relay-packets", "-1", "--", ISOLA_GUEST_BINARY, "--id", kId,
                  "--packets", "3", nullptr);
        }
        ::execl(ISOLA_GUEST_BINARY, "isola-guest", "--id", kId, nullptr);
      }
      ::_exit(98);
    }
    if (flags & CLONE_NEWUSER) {
      put("uid_map", "0 100000 65536");
      put("gid_map", "0 100000 65536");
    }
    ::close(ready[0]);
    ::close(ready[1]);
    ::close(in[0]);
    ::close(out[1]);
    if (form == Form::stdio && ::write(in[1], mark().data(), kMarkSize) != static_cast<ssize_t>(kMarkSize))
      std::abort();
    raw_in_ = Fd(::fcntl(in[1], F_DUPFD_CLOEXEC, 3));
    old_out_ = Fd(::fcntl(out[0], F_DUPFD_CLOEXEC, 3));
    client_.emplace(Fd(out[0]), Fd(in[1]));
  }
  ~TestGuest() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int status;
    ::waitpid(pid_, &status, 0);
  }

  PipeClient& operator*() { return *client_; }
  PipeClient* operator->() { return &*client_; }
  pid_t pid() const { return pid_; }
  int raw_in() const { return raw_in_.get(); }  // beside the client's own
  int raw_out() const { return old_out_.get(); }

  // As the launcher does it: signal, wait for the old pipe to hang up, open the new ones.
  void reattach() {
    ::kill(pid_, SIGRTMIN + kReattachSignal);
    pollfd p{old_out_.get(), 0, 0};
    ::poll(&p, 1, 10000);
    ASSERT_TRUE(p.revents & POLLHUP);
    client_->session().reset({Code::unavailable, "re-attached", 0});
    reopen();
  }
  void reopen() {
    auto link = open_link(pid_);
    ASSERT_OK(link);
    client_.emplace(std::move(*link));
    raw_in_ = Fd(::open(("/proc/" + std::to_string(pid_) + "/fd/3").c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    old_out_ = Fd(::open(("/proc/" + std::to_string(pid_) + "/fd/4").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  }
  void forget() { pid_ = -1; }  // the test has waited for it
  bool hung_up() {
    pollfd p{old_out_.get(), 0, 0};
    ::poll(&p, 1, 0);
    return p.revents & POLLHUP;
  }

  // Runs a shell line and gives what it wrote.
  struct Output {
    Result<Exit> exit;
    std::string out, err;
  };
  Output sh(const std::string& line, Start start = {}) {
    Output o;
    start.argv = {"/bin/sh", "-c", line};
    o.exit = client_->run(
        start, {.out = [&](std::string_view s) { o.out += s; }, .err = [&](std::string_view s) { o.err += s; }});
    return o;
  }

 private:
  void put(const char* file, const char* text) {
    Fd fd(::open(("/proc/" + std::to_string(pid_) + "/" + file).c_str(), O_WRONLY | O_CLOEXEC));
    if (::write(fd.get(), text, std::string_view(text).size()) < 0) std::abort();
  }
  pid_t pid_ = -1;
  std::optional<PipeClient> client_;
  Fd old_out_, raw_in_;
};

// A folder of its own that goes with the object, in memory: these tests make many thousand files.
class TempDir {
 public:
  TempDir() { path_ = ::mkdtemp(name_); }
  ~TempDir() { (void)!std::system(("rm -rf " + path_).c_str()); }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  char name_[32] = "/dev/shm/isola-guest-XXXXXX";
  std::string path_;
};

}  // namespace isola::guest
