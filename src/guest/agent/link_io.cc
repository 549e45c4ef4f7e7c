#include "guest/agent/link_io.h"

#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "base/file.h"
#include "base/ids.h"
#include "guest/agent/rebirth.h"

namespace isola::guest {

namespace {

// Not the shared one: what is in it is being worked on while others read.
char inbound[64 << 10];

// Installs a new pipe over the two numbers. Only the guest's own end is made non-blocking: the other is the host's.
Result<void> make_pipe_at(int read_at, int write_at, int ours) {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) < 0) return sys_error("cannot make a pipe for the link");
  Fd r(fds[0]), w(fds[1]);
  for (auto [from, to] : {std::pair{r.get(), read_at}, std::pair{w.get(), write_at}}) {
    if (to == ours) ::fcntl(from, F_SETFL, O_NONBLOCK);
    if (::dup3(from, to, O_CLOEXEC) < 0) return sys_error("cannot install the link");
  }
  return {};
}

}  // namespace

bool make_new_pipes() {
  return make_pipe_at(kFdInRead, kFdInWrite, kFdInRead) && make_pipe_at(kFdOutRead, kFdOutWrite, kFdOutWrite);
}

Result<void> LinkIo::take_stdio() {
  // Out of the way of children, who get 0 and 1 of their own.
  in_ = ::fcntl(0, F_DUPFD_CLOEXEC, 3);
  out_ = ::fcntl(1, F_DUPFD_CLOEXEC, 3);
  if (in_ < 0 || out_ < 0) return sys_error("there is no link on standard input and output");
  termios t{};
  if (::tcgetattr(in_, &t) == 0) {
    ::cfmakeraw(&t);
    ::tcsetattr(in_, TCSANOW, &t);
  }
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (null) ::dup2(null.get(), 0), ::dup2(null.get(), 1);
  ISOLA_CHECK(await_mark());
  if (null) ::dup2(null.get(), 2);  // from here on nobody reads complaints, and others inside could open them
  return {};
}

Result<void> LinkIo::take_packets() {
  in_ = place_.packets;
  out_ = ::fcntl(in_, F_DUPFD_CLOEXEC, 3);  // each is waited for by itself
  if (out_ < 0) return sys_error("there is no line of packets");
  line_.emplace(in_, PacketLine::End::greets);
  return await_mark();
}

Result<void> LinkIo::take_device() {
  in_ = place_.device;
  out_ = ::fcntl(in_, F_DUPFD_CLOEXEC, 3);  // each is waited for by itself
  // Whoever waits at the other end does so for this: from here on it is heard.
  const char here = '!';
  if (out_ < 0 || ::write(out_, &here, 1) != 1) return sys_error("there is no serial line");
  return await_mark();
}

// The first bytes: what to listen for from now on.
Result<void> LinkIo::await_mark() {
  std::string mark(kMarkSize, '\0');
  for (size_t have = 0; have < mark.size();) {
    ssize_t n = read(mark.data() + have, mark.size() - have);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
      pollfd ready{in_, POLLIN, 0};
      (void)::poll(&ready, 1, -1);
      continue;
    }
    if (n <= 0) return sys_error("the link does not begin with a mark", n < 0 ? errno : EPIPE);
    have += static_cast<size_t>(n);
  }
  stream_ = MarkedStream(std::move(mark));
  return {};
}

Result<void> LinkIo::begin() {
  if (place_.packets >= 0) {
    ISOLA_CHECK(take_packets());
  } else if (place_.device >= 0) {
    ISOLA_CHECK(take_device());
  } else if (place_.stdio) {
    ISOLA_CHECK(take_stdio());
  } else {
    for (int fd : {kFdInRead, kFdOutWrite, kFdInWrite, kFdOutRead}) {
      if (::fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) return sys_error("the link's file descriptors are missing");
    }
  }
  for (int fd : {in_, out_}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
  agent_.mux().allow_files(!marked_);
  if (place_.stdio || place_.device >= 0)
    agent_.mux().on_naming = [this](std::string_view payload) {
      if (auto naming = decode<Naming>(payload)) naming_ = std::move(*naming);
    };
  // The machine was stopped: its programs are not to see the time of the moment before.
  if (place_.device >= 0)
    agent_.mux().on_go_on = [](std::string_view args) {
      if (auto now = decode<GoOn>(args)) (void)set_clock(now->time);
    };
  // Without a name there is nobody to say hello for yet.
  if (!agent_.id().empty()) agent_.next_generation();
  ISOLA_CHECK(watch());
  if (line_) on_in(0);  // what came behind the mark is taken in already, and nothing would tell of it
  flush();
  return {};
}

Result<void> LinkIo::watch() {
  // Edge-triggered on a stream that can end, or its end would wake us for ever.
  return agent_.loop().add(in_, marked_ ? EPOLLIN | EPOLLET : EPOLLIN, &in_source_);
}

void LinkIo::on_in(uint32_t) {
  do {
    ssize_t n = read(inbound, sizeof inbound);
    if (n > 0) {
      feed({inbound, static_cast<size_t>(n)});
    } else if (n == 0 || errno != EINTR) {
      break;
    }
  } while (marked_);  // a pipe that has more wakes us again
}

void LinkIo::feed(std::string_view bytes) {
  if (!marked_) return agent_.mux().feed(bytes);
  stream_.feed(
      bytes, [this](std::string_view plain) { agent_.mux().feed(plain); },
      [this] { agent_.next_generation(stream_.mark()); });
  if (naming_) take_name();
}

// Not in the middle of feed(): it changes what that works with. Nothing comes after a naming until it was answered.
void LinkIo::take_name() {
  Naming naming = std::move(*std::exchange(naming_, std::nullopt));
  if (naming.mark.size() != kMarkSize || !is_sandbox_id(naming.id)) return;
  // Nothing goes on with the clock or the random numbers of another: its kernel ends with process 1.
  if (naming.time != 0 && !awake_at(naming.time, naming.randomness)) ::_exit(1);
  agent_.rename(std::move(naming.id));
  stream_ = MarkedStream(std::move(naming.mark));
  agent_.next_generation(stream_.mark());
}

void LinkIo::flush() {
  if (agent_.mux().quiesced()) {
    secrecy_.allow_checkpoint();  // before the host reads that it may begin
    // Whoever takes only the files of an image finds there what was written until now.
    if (place_.device >= 0 && !std::exchange(synced_, true)) ::sync();
  } else {
    secrecy_.forbid_checkpoint();
    synced_ = false;
  }
  while (!agent_.mux().out().empty() || agent_.mux().has_file()) {
    auto bytes = agent_.mux().out();
    ssize_t n = bytes.empty() ? agent_.mux().move_file(out_) : write(bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      if (line_ && line_->full()) break;  // what makes room comes in, and after each round there is a flush
      if (errno == EAGAIN && !waiting_) waiting_ = agent_.loop().add(out_, EPOLLOUT, &out_source_).has_value();
      return;
    }
    agent_.mux().sent(static_cast<size_t>(n));
  }
  if (line_) line_->acknowledge();
  const bool more = line_ && line_->owes_word();  // there was no room even for that
  if (more == waiting_) return;
  if (waiting_) agent_.loop().remove(out_, &out_source_);
  waiting_ = more && agent_.loop().add(out_, EPOLLOUT, &out_source_).has_value();
}

void LinkIo::on_out(uint32_t) { flush(); }

void LinkIo::reattach() {
  if (marked_) return;  // there it is asked for in band
  secrecy_.forbid_checkpoint();
  agent_.loop().remove(in_, &in_source_);
  if (waiting_) agent_.loop().remove(out_, &out_source_);
  waiting_ = false;
  if (!make_new_pipes() || !watch()) return;
  agent_.next_generation();
  flush();
}

uint32_t host_signal_uid() {
  auto map = read_file("/proc/self/uid_map", 4096);
  unsigned inside = 1, outside = 1, count = 0;
  bool initial = map && std::sscanf(map->c_str(), "%u %u %u", &inside, &outside, &count) == 3 && inside == 0 &&
                 outside == 0 && count == UINT32_MAX;
  return initial ? 0 : 65534;
}

bool is_from_host(const signalfd_siginfo& signal, uint32_t host_uid) {
  return signal.ssi_signo == static_cast<uint32_t>(SIGRTMIN + kReattachSignal) && signal.ssi_code == SI_USER &&
         signal.ssi_pid == 0 && signal.ssi_uid == host_uid;
}

}  // namespace isola::guest
