#include "guest/agent/relay.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "base/mark.h"
#include "guest/agent/link_io.h"
#include "guest/link.h"
#include "guest/naming.h"
#include "guest/packet_line.h"

namespace isola::guest {

namespace {

// One end of the engine's: a pipe, or a line of packets.
struct Stream {
  int fd = -1;
  PacketLine* line = nullptr;
  ssize_t read(char* into, size_t room) const { return line ? line->read(into, room) : ::read(fd, into, room); }
  ssize_t write(const char* bytes, size_t n) const { return line ? line->write(bytes, n) : ::write(fd, bytes, n); }
};

// How long a line of packets may be silent before the other end is reminded; doubled each time, up to the other.
constexpr int kPatienceMs = 200, kMostPatienceMs = 10'000;
constexpr size_t kMostGiven = 8;

// Bytes on their way in one direction: read only when all of the last piece was written.
class Flow {
 public:
  bool empty() const { return at_ == size_; }
  void clear() { at_ = size_ = 0; }
  // False: nothing more comes.
  bool fill(const Stream& from) {
    ssize_t n = from.read(bytes_, sizeof bytes_);
    at_ = 0;
    size_ = n > 0 ? static_cast<size_t>(n) : 0;
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
  }
  void drain(const Stream& to) {
    while (!empty()) {
      ssize_t n = to.write(bytes_ + at_, size_ - at_);
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
  Result<void> begin(const RelayOptions& options);
  void run();

 private:
  Result<void> connect(const RelayOptions& options);
  Result<void> connect_by_packets(const RelayOptions& options);
  Result<void> connect_machine(const RelayOptions& options);
  // `given`: descriptors of ours, and the numbers under which the engine knows them.
  Result<void> start(const RelayOptions& options, const std::vector<std::pair<int, int>>& given);
  Result<void> name(const RelayOptions& options);
  void hear_machine();
  void hear_console();
  void on_signal();
  void reattach();
  void pump();
  void pump_out();
  void watch();
  void wait();
  void set(int fd, bool& on, bool wanted, uint32_t events);

  Stream to() { return {to_engine_.get(), line_ ? &*line_ : nullptr}; }
  Stream from() { return {from_engine_.get(), line_ ? &*line_ : nullptr}; }

  Fd epoll_, signals_, to_engine_, from_engine_;
  MachineEnds machine_;  // until it is started
  Fd console_;           // of a machine, until it has said enough
  size_t console_heard_ = 0;
  std::string machine_says_;               // while it is restored
  const RelayOptions* unnamed_ = nullptr;  // a machine whose guest cannot hear its name yet
  std::optional<PacketLine> line_;
  int patience_ms_ = kPatienceMs;
  pid_t engine_ = -1;
  uint32_t host_uid_ = 0;
  MarkFinder finder_;
  std::string opening_;    // marks and names that are still to be written, before anything of the host's
  bool awaiting_ = false;  // until it came back, what the engine says is of an older generation, and it is told nothing
  Flow in_, out_;
  bool engine_silent_ = false;
  bool reading_monitor_ = false, reading_console_ = false;
  bool reading_host_ = false, reading_engine_ = false, writing_host_ = false, writing_engine_ = false;
};

Result<void> Relay::begin(const RelayOptions& options) {
  ISOLA_TRY(std::string mark, draw_mark());
  finder_ = MarkFinder(mark);
  host_uid_ = host_signal_uid();
  // Nobody else in the box shall read what this one holds, nor trace it.
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot protect the relay");
  for (int fd : {kFdInRead, kFdOutWrite, kFdInWrite, kFdOutRead})
    if (::fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return sys_error("the link's file descriptors are missing");
  for (int fd : {kFdInRead, kFdOutWrite}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  if (options.machine.on) {  // before anything else takes its numbers
    ISOLA_TRY(machine_, MachineEnds::make(options.machine, kFdNetwork));
  }
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
  if (options.machine.on) {
    ISOLA_CHECK(connect_machine(options));
    unnamed_ = &options;
    awaiting_ = true;
    return {};
  }
  ISOLA_CHECK(options.packets ? connect_by_packets(options) : connect(options));
  return name(options);
}

Result<void> Relay::name(const RelayOptions& options) {
  const std::string& mark = finder_.mark();
  // The first one tells the guest what to listen for; it is not answered. A name is. It comes with another mark, since
  // the guest would take the same one, in the middle of the frame, for what it is.
  if (!options.restored && options.name.empty()) opening_ = mark;
  if (!options.restored && !options.name.empty()) {
    ISOLA_TRY(opening_, draw_mark());
  }
  if (!options.name.empty()) {
    Naming naming{.mark = mark, .id = options.name};
    if (options.machine.on) {
      timespec now{};
      naming.randomness.resize(kRandomness);
      if (::clock_gettime(CLOCK_REALTIME, &now) < 0 ||
          ::getrandom(naming.randomness.data(), kRandomness, 0) != static_cast<ssize_t>(kRandomness))
        return sys_error("cannot tell the guest the time");
      naming.time = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
    }
    put_frame(opening_, 0, kNaming, encode(naming));
    awaiting_ = true;
  }
  return {};
}

Result<void> Relay::connect(const RelayOptions& options) {
  int in[2], out[2];
  if (::pipe2(in, O_CLOEXEC) < 0 || ::pipe2(out, O_CLOEXEC) < 0) return sys_error("cannot make pipes for the engine");
  Fd its_in(in[0]), its_out(out[1]);
  to_engine_ = Fd(in[1]);
  from_engine_ = Fd(out[0]);
  ISOLA_CHECK(start(options, {{its_in.get(), 0}, {its_out.get(), 1}}));
  for (const Fd* fd : {&to_engine_, &from_engine_}) ::fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  return {};
}

Result<void> Relay::connect_by_packets(const RelayOptions& options) {
  if (::fcntl(kFdNetwork, F_SETFD, FD_CLOEXEC) < 0) return sys_error("the sandbox's network is missing");
  if (options.processor >= 0) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(options.processor, &one);
    // Only faster: a processor that is gone, or not allowed any more, is no reason to fail.
    (void)::sched_setaffinity(0, sizeof one, &one);
  }
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
    return sys_error("cannot make a line to the engine");
  Fd its(pair[1]);
  from_engine_ = Fd(pair[0]);
  // Each is waited for by itself.
  to_engine_ = Fd(::fcntl(pair[0], F_DUPFD_CLOEXEC, 0));
  if (!to_engine_) return sys_error("cannot make a line to the engine");
  const int room = 4 * static_cast<int>(PacketLine::kWindow);
  for (int fd : {pair[0], pair[1]}) (void)::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  line_.emplace(from_engine_.get(), PacketLine::End::waits);
  return start(options, {{its.get(), kEngineLine}, {kFdNetwork, kEngineNetwork}});
}

Result<void> Relay::connect_machine(const RelayOptions& options) {
  if (::fcntl(kFdNetwork, F_SETFD, FD_CLOEXEC) < 0) return sys_error("the sandbox's network is missing");
  MachineEnds ends = std::move(machine_);
  from_engine_ = std::move(ends.line);
  to_engine_ = Fd(::fcntl(from_engine_.get(), F_DUPFD_CLOEXEC, 0));
  if (!to_engine_) return sys_error("cannot make a line to the machine");
  console_ = std::move(ends.console);
  return start(options, ends.take);
}

// Says when the machine goes on, or why it does not. From then on it is somebody else's to listen to.
void Relay::hear_machine() {
  constexpr size_t kMost = 64 << 10;
  char some[4096];
  ssize_t n = ::recv(kFdMonitor, some, sizeof some, MSG_DONTWAIT);
  if (n > 0) machine_says_.append(some, static_cast<size_t>(n));
  if (machine_says_.find("\"error\"") != std::string::npos || machine_says_.size() > kMost) {
    std::fprintf(stderr, "the machine cannot be restored: %s\n", machine_says_.substr(0, 1000).c_str());
    ::_exit(1);
  }
  if (machine_says_.find("\"RESUME\"") == std::string::npos) return;
  machine_says_.clear();
  if (!name(*std::exchange(unnamed_, nullptr))) ::_exit(1);
}

// What a kernel says that does not come up is why; later on nobody wants to know, and there may be no end of it.
void Relay::hear_console() {
  constexpr size_t kMost = 16 << 10;
  char some[1024];
  ssize_t n = ::read(console_.get(), some, sizeof some);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n > 0) (void)!::write(2, some, static_cast<size_t>(n));
  console_heard_ += n > 0 ? static_cast<size_t>(n) : 0;
  if (n > 0 && console_heard_ < kMost) return;
  reading_console_ = false;
  console_.reset();
}

Result<void> Relay::start(const RelayOptions& options, const std::vector<std::pair<int, int>>& given) {
  std::vector<char*> argv;
  for (const auto& word : options.engine) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  const char* program = argv[0];
  // A kernel that is told to reboot starts the program that it was called by once more: there is none of that name.
  static char nobody[] = "no-second-boot";
  if (options.packets) argv[0] = nobody;
  engine_ = ::fork();
  if (engine_ < 0) return sys_error("cannot start the engine");
  if (engine_ > 0) return {};
  sigset_t none;
  ::sigemptyset(&none);
  // Out of the way of each other first; then there is nothing between them and behind them.
  constexpr int kParking = 100;
  int parked[kMostGiven], last = 2;
  if (given.size() > kMostGiven) ::_exit(126);
  for (size_t i = 0; i < given.size(); ++i)
    if ((parked[i] = ::fcntl(given[i].first, F_DUPFD_CLOEXEC, kParking)) < 0) ::_exit(126);
  if (::syscall(SYS_close_range, 3U, static_cast<unsigned>(kParking - 1), 0U) < 0) ::_exit(126);
  for (size_t i = 0; i < given.size(); ++i) {
    if (::dup2(parked[i], given[i].second) < 0) ::_exit(126);
    last = std::max(last, given[i].second);
  }
  if (::syscall(SYS_close_range, static_cast<unsigned>(last + 1), ~0U, 0U) < 0) ::_exit(126);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(program, argv.data(), environ);
  std::fprintf(stderr, "cannot start %s: %s\n", program, std::strerror(errno));
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
  opening_ += finder_.mark();
}

void Relay::set(int fd, bool& on, bool wanted, uint32_t events) {
  if (on == wanted) return;
  epoll_event event{.events = events, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &event) == 0) on = wanted;
}

// Each descriptor is waited for only while somebody could use what it has.
void Relay::watch() {
  const bool mark = !opening_.empty();
  set(kFdInRead, reading_host_, !mark && !awaiting_ && in_.empty(), EPOLLIN);
  const bool can_write = !line_ || !line_->full();
  set(to_engine_.get(), writing_engine_, ((mark || !in_.empty()) && can_write) || (line_ && line_->owes_word()),
      EPOLLOUT);
  // (A line is always listened to: it also tells what the guest has taken.)
  set(from_engine_.get(), reading_engine_, !engine_silent_ && (out_.empty() || line_), EPOLLIN);
  set(kFdOutWrite, writing_host_, !out_.empty(), EPOLLOUT);
  set(kFdMonitor, reading_monitor_, unnamed_ && unnamed_->restored, EPOLLIN);
  if (console_) set(console_.get(), reading_console_, true, EPOLLIN);
}

void Relay::pump() {
  if (line_ && !line_->receive()) engine_silent_ = true;
  in_.drain(to());
  while (in_.empty() && !opening_.empty()) {
    ssize_t n = to().write(opening_.data(), opening_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    opening_.erase(0, static_cast<size_t>(n));
  }
  if (opening_.empty() && !awaiting_ && in_.empty()) {
    (void)in_.fill({.fd = kFdInRead});
    in_.drain(to());
  }
  do pump_out();
  while (line_ && line_->has_more() && out_.empty());
  if (line_) line_->acknowledge();
}

void Relay::pump_out() {
  out_.drain({.fd = kFdOutWrite});
  if (!out_.empty() || (engine_silent_ && !line_)) return;
  if (!out_.fill(from())) engine_silent_ = true;
  // It says that it is there: it can be told who it is.
  if (unnamed_ && !unnamed_->restored && !out_.empty() && !name(*std::exchange(unnamed_, nullptr))) ::_exit(1);
  while (awaiting_ && !out_.empty()) {
    size_t end = finder_.find(out_.bytes());
    awaiting_ = end == MarkFinder::npos;
    out_.skip(std::min(end, out_.bytes().size()));
  }
  out_.drain({.fd = kFdOutWrite});
}

void Relay::wait() {
  epoll_event events[8];
  const bool anxious = line_ && line_->waiting();
  int n = ::epoll_wait(epoll_.get(), events, 8, anxious ? patience_ms_ : -1);
  if (n == 0 && anxious) {
    line_->remind();
    patience_ms_ = std::min(2 * patience_ms_, kMostPatienceMs);
  }
  for (int i = 0; i < n; ++i) {
    if (events[i].data.fd == from_engine_.get()) patience_ms_ = kPatienceMs;
    if (events[i].data.fd == signals_.get()) on_signal();
    if (unnamed_ && events[i].data.fd == kFdMonitor) hear_machine();
    if (console_ && events[i].data.fd == console_.get()) hear_console();
  }
}

void Relay::run() {
  for (;;) {
    watch();
    wait();
    pump();
  }
}

}  // namespace

int run_relay(const RelayOptions& options) {
  static Relay relay;
  if (auto begun = relay.begin(options); !begun)
    return std::fprintf(stderr, "isola-guest: %s\n", begun.error().message.c_str()), 1;
  relay.run();
  return 1;
}

}  // namespace isola::guest
