#include "guest/agent/relay.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "base/mark.h"
#include "guest/agent/link_io.h"
#include "guest/link.h"

namespace isola::guest {

namespace {

// Bytes on their way in one direction: read only when all of the last piece was written.
class Flow {
 public:
  bool empty() const { return at_ == size_; }
  void clear() { at_ = size_ = 0; }
  // False: nothing more comes.
  bool fill(int from) {
    ssize_t n = ::read(from, bytes_, sizeof bytes_);
    at_ = 0;
    size_ = n > 0 ? static_cast<size_t>(n) : 0;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
  }
  void drain(int to) {
    while (!empty()) {
      ssize_t n = ::write(to, bytes_ + at_, size_ - at_);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return;
      at_ += static_cast<size_t>(n);
    }
  }
  std::string_view bytes() const { return {bytes_ + at_, size_ - at_}; }
  void skip(size_t n) { at_ += n; }

 private:
  char bytes_[64 << 10];
  size_t at_ = 0, size_ = 0;
};

Result<std::string> draw_mark() {
  std::string mark(kMarkSize, '\0');
  if (::getrandom(mark.data(), mark.size(), 0) != static_cast<ssize_t>(mark.size()))
    return sys_error("cannot draw a mark");
  return mark;
}

class Relay {
 public:
  Result<void> begin(const std::vector<std::string>& engine);
  void run();

 private:
  Result<void> start(const std::vector<std::string>& engine, int in, int out);
  void on_signal();
  void reattach();
  void pump();
  void watch();
  void set(int fd, bool& on, bool wanted, uint32_t events);

  Fd epoll_, signals_, to_engine_, from_engine_;
  pid_t engine_ = -1;
  uint32_t host_uid_ = 0;
  MarkFinder finder_;
  size_t mark_left_ = 0;   // bytes of the mark that are still to be written
  bool awaiting_ = false;  // until it came back, what the engine says is of an older generation, and it is told nothing
  Flow in_, out_;
  bool engine_silent_ = false;
  bool reading_host_ = false, reading_engine_ = false, writing_host_ = false, writing_engine_ = false;
};

Result<void> Relay::begin(const std::vector<std::string>& engine) {
  ISOLA_TRY(std::string mark, draw_mark());
  finder_ = MarkFinder(mark);
  host_uid_ = host_signal_uid();
  // Nobody else in the box shall read what this one holds, nor trace it.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot protect the relay");
  for (int fd : {kFdInRead, kFdOutWrite, kFdInWrite, kFdOutRead})
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return sys_error("the link's file descriptors are missing");
  for (int fd : {kFdInRead, kFdOutWrite}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  sigset_t all, ours;
  ::sigfillset(&all);
  ::sigemptyset(&ours);
  ::sigaddset(&ours, SIGCHLD);
  ::sigaddset(&ours, SIGRTMIN + kReattachSignal);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  signals_ = Fd(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  if (!signals_ || !epoll_) return sys_error("cannot wait for events");
  epoll_event event{.events = EPOLLIN, .data = {.fd = signals_.get()}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, signals_.get(), &event) < 0) return sys_error("cannot read signals");
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) < 0 || ::pipe2(out, O_CLOEXEC) < 0) return sys_error("cannot make pipes for the engine");
  Fd its_in(in[0]), its_out(out[1]);
  to_engine_ = Fd(in[1]);
  from_engine_ = Fd(out[0]);
  ISOLA_CHECK(start(engine, its_in.get(), its_out.get()));
  for (const Fd* fd : {&to_engine_, &from_engine_}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  // The first one tells the guest what to listen for; it is not answered.
  mark_left_ = kMarkSize;
  return {};
}

Result<void> Relay::start(const std::vector<std::string>& engine, int in, int out) {
  std::vector<char*> argv;
  for (const auto& word : engine) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  char* const env[] = {nullptr};
  engine_ = ::fork();
  if (engine_ < 0) return sys_error("cannot start the engine");
  if (engine_ > 0) return {};
  sigset_t none;
  ::sigemptyset(&none);
  if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::syscall(SYS_close_range, 3U, ~0U, 0U) < 0) ::_exit(126);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(argv[0], argv.data(), env);
  std::fprintf(stderr, "cannot start %s: %s\n", argv[0], std::strerror(errno));
  ::_exit(127);
}

void Relay::on_signal() {
  signalfd_siginfo info[16];
  ssize_t n = ::read(signals_.get(), info, sizeof info);
  bool again = false;
  for (ssize_t i = 0; i < n / static_cast<ssize_t>(sizeof info[0]); ++i) again |= is_from_host(info[i], host_uid_);
  if (again) reattach();
  for (;;) {
    int status = 0;
    pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return;
    if (pid == engine_) ::_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
  }
}

void Relay::reattach() {
  for (bool* on : {&reading_host_, &writing_host_}) *on = false;  // with the old pipes they go
  if (!make_new_pipes()) return;
  in_.clear();
  out_.clear();
  // One that is under way serves these pipes as well: nothing was said since.
  if (std::exchange(awaiting_, true)) return;
  finder_.reset();
  // (A first mark that is not yet written as a whole is followed by this one.)
  mark_left_ += kMarkSize;
}

void Relay::set(int fd, bool& on, bool wanted, uint32_t events) {
  if (on == wanted) return;
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event) == 0) on = wanted;
}

// Each descriptor is waited for only while somebody could use what it has.
void Relay::watch() {
  const bool mark = mark_left_ > 0;
  set(kFdInRead, reading_host_, !mark && !awaiting_ && in_.empty(), EPOLLIN);
  set(to_engine_.get(), writing_engine_, mark || !in_.empty(), EPOLLOUT);
  set(from_engine_.get(), reading_engine_, !engine_silent_ && out_.empty(), EPOLLIN);
  set(kFdOutWrite, writing_host_, !out_.empty(), EPOLLOUT);
}

void Relay::pump() {
  const std::string& mark = finder_.mark();
  in_.drain(to_engine_.get());
  while (in_.empty() && mark_left_ > 0) {
    const size_t now = mark_left_ % kMarkSize == 0 ? kMarkSize : mark_left_ % kMarkSize;
    ssize_t n = ::write(to_engine_.get(), mark.data() + (kMarkSize - now), now);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    mark_left_ -= static_cast<size_t>(n);
  }
  if (mark_left_ == 0 && !awaiting_ && in_.empty()) {
    (void)in_.fill(kFdInRead);
    in_.drain(to_engine_.get());
  }
  out_.drain(kFdOutWrite);
  if (!out_.empty() || engine_silent_) return;
  if (!out_.fill(from_engine_.get())) engine_silent_ = true;
  while (awaiting_ && !out_.empty()) {
    size_t end = finder_.find(out_.bytes());
    awaiting_ = end == MarkFinder::npos;
    out_.skip(std::min(end, out_.bytes().size()));
  }
  out_.drain(kFdOutWrite);
}

void Relay::run() {
  for (;;) {
    watch();
    epoll_event events[8];
    int n = ::epoll_wait(epoll_.get(), events, 8, -1);
    for (int i = 0; i < n; ++i)
      if (events[i].data.fd == signals_.get()) on_signal();
    pump();
  }
}

}  // namespace

int run_relay(const std::vector<std::string>& engine) {
  static Relay relay;
  if (auto begun = relay.begin(engine); !begun)
    return std::fprintf(stderr, "isola-guest: %s\n", begun.error().message.c_str()), 1;
  relay.run();
  return 1;
}

}  // namespace isola::guest
