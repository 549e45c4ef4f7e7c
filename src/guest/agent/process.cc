#include "guest/agent/process.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "guest/agent/procfs.h"
#include "guest/agent/scratch.h"
#include "guest/agent/spawn.h"

namespace isola::guest {

namespace {

struct Pipe {
  Fd read, write;
};

Result<Pipe> make_pipe() {
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) < 0) return sys_error("cannot make a pipe");
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, O_NONBLOCK); }

int dev_null() {
  static int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd < 0) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return fd;
}

struct Terminal {
  Fd master, slave;
};

Result<Terminal> make_terminal(const User& user, uint16_t rows, uint16_t cols) {
  Terminal t;
  t.master = Fd(::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  int unlock = 0;
  if (!t.master || ::ioctl(t.master.get(), TIOCSPTLCK, &unlock) < 0) return sys_error("cannot make a terminal");
  // By ioctl and not by name: a path under /dev/pts is the sandbox's to change.
  t.slave = Fd(::ioctl(t.master.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  // A kernel that does not know it (gVisor's): by name then, and only if what is there is a terminal. Where paths are
  // the sandbox's to change, so is everything else that could be lost by it.
  unsigned number = 0;
  if (!t.slave && (errno == ENOTTY || errno == EINVAL) && ::ioctl(t.master.get(), TIOCGPTN, &number) == 0) {
    t.slave = Fd(::open(("/dev/pts/" + std::to_string(number)).c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW));
    if (t.slave && ::isatty(t.slave.get()) != 1) t.slave.reset();
  }
  if (!t.slave) return sys_error("cannot open the terminal");
  winsize size{.ws_row = rows, .ws_col = cols, .ws_xpixel = 0, .ws_ypixel = 0};
  ::ioctl(t.master.get(), TIOCSWINSZ, &size);
  if (user.uid != 0 && ::fchown(t.slave.get(), user.uid, static_cast<gid_t>(-1)) < 0) {
    return sys_error("cannot give the terminal to its user");
  }
  return t;
}

std::string joined(const std::vector<std::string>& argv) {
  std::string out;
  for (const auto& a : argv) {
    if (out.size() > 256) break;
    if (!out.empty()) out += ' ';
    out += a.substr(0, 256);
  }
  return out.substr(0, 512);
}

constexpr size_t kMaxTag = 2048;  // the host signs what it puts there: one that is cut is nobody's

}  // namespace

Process::Process(Loop& loop, const Start& start, std::vector<pid_t>* late)
    : loop_(loop),
      tag_(start.tag.substr(0, kMaxTag)),
      command_(joined(start.argv)),
      cwd_(start.cwd.substr(0, 1024)),
      user_(start.user.substr(0, 64)),
      pty_(start.pty),
      late_(start.pty ? nullptr : late),  // a terminal goes with the leader of its session
      grace_ms_(start.grace_ms),
      timeout_ms_(start.timeout_ms) {}

Process::~Process() {
  close(out_fd_, out_source_);
  close(err_fd_, err_source_);
  close(in_fd_, in_source_);
}

Result<void> Process::launch(const Start& start, const User& user, const std::vector<std::string>& defaults,
                             const std::vector<std::string>& files) {
  Stdio stdio{.pty = start.pty};
  Fd child_in, child_out, child_err;
  if (start.pty) {
    ISOLA_TRY(Terminal t, make_terminal(user, start.rows, start.cols));
    out_fd_ = std::move(t.master);
    in_fd_ = Fd(::fcntl(out_fd_.get(), F_DUPFD_CLOEXEC, 3));
    child_in = std::move(t.slave);
    stdio.in = stdio.out = stdio.err = child_in.get();
  } else {
    ISOLA_TRY(Pipe out, make_pipe());
    ISOLA_TRY(Pipe err, make_pipe());
    out_fd_ = std::move(out.read);
    err_fd_ = std::move(err.read);
    child_out = std::move(out.write);
    child_err = std::move(err.write);
    stdio.out = child_out.get();
    stdio.err = child_err.get();
    set_nonblocking(out_fd_.get());
    set_nonblocking(err_fd_.get());
    if (start.stdin_mode == Stdin::pipe) {
      ISOLA_TRY(Pipe in, make_pipe());
      child_in = std::move(in.read);
      in_fd_ = std::move(in.write);
      stdio.in = child_in.get();
      set_nonblocking(in_fd_.get());
    } else if (start.stdin_mode == Stdin::null) {
      stdio.in = dev_null();
    }
  }
  if (files.empty()) {
    ISOLA_TRY(pid_, spawn(start, user, defaults, stdio));
  } else {
    ISOLA_TRY(files_, PrivateFiles::make(files, user));
    Start with = start;
    with.env.insert(with.env.end(), files_.variables().begin(), files_.variables().end());
    ISOLA_TRY(pid_, spawn(with, user, defaults, stdio));
  }
  running_ = true;
  exit_.pid = static_cast<uint32_t>(pid_);
  if (timeout_ms_ > 0) deadline_ = now_ms() + static_cast<int64_t>(std::min<uint64_t>(timeout_ms_, INT64_MAX / 2));
  (void)loop_.add(out_fd_.get(), EPOLLIN, &out_source_);
  if (err_fd_) (void)loop_.add(err_fd_.get(), EPOLLIN, &err_source_);
  return {};
}

void Process::take(Fd& fd, Source& source, Stream stream, size_t most) {
  ssize_t n = ::read(fd.get(), scratch, std::min(most, sizeof scratch));
  if (n > 0) {
    log_.append(stream, {scratch, static_cast<size_t>(n)}, needed());
    wake_readers();
  } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {  // a terminal says EIO when nobody has it open any more
    close(fd, source);
    if (draining()) return;
    log_.settle();
    if (lingers_) finish();
  }
}

uint64_t Process::needed() const {
  uint64_t from = OutputLog::kNobody;
  for (const auto* reader : readers_)
    if (reader->reads_ == ReaderChannel::Reads::held) from = std::min(from, reader->cursor_.seq);
  return from;
}

bool Process::lags() const {
  const uint64_t from = needed();
  return from < log_.end() && log_.end() - from > (log_.full() ? kMostInMemory : kMostUnread);
}

bool Process::hold_back() {
  if (!lags()) return false;
  held_ = true;
  if (out_fd_) loop_.remove(out_fd_.get(), &out_source_);
  if (err_fd_) loop_.remove(err_fd_.get(), &err_source_);
  return true;
}

void Process::let_on() {
  if (!std::exchange(held_, false)) return;
  if (out_fd_) (void)loop_.add(out_fd_.get(), EPOLLIN, &out_source_);
  if (err_fd_) (void)loop_.add(err_fd_.get(), EPOLLIN, &err_source_);
}

// What is in the pipe now, and no more: somebody who keeps writing must not keep the end from being told.
void Process::drain(Fd& fd, Source& source, Stream stream) {
  int left = 0;
  if (!fd || ::ioctl(fd.get(), FIONREAD, &left) < 0) left = 0;
  if (pty_) left = std::max(left, 1 << 16);  // a terminal tells only part of what it holds
  while (fd && left > 0) {
    uint64_t before = log_.end();
    take(fd, source, stream, static_cast<size_t>(left));
    if (log_.end() == before) break;
    left -= static_cast<int>(log_.end() - before);
  }
  if (fd) take(fd, source, stream, 1);  // usually the end of file: the fd can go now
}

void Process::close(Fd& fd, Source& source) {
  if (!fd) return;
  if (&fd != &in_fd_ || in_waiting_) loop_.remove(fd.get(), &source);
  fd.reset();
}

void Process::wake_readers() {
  for (auto* reader : readers_) reader->schedule();
}

void Process::drain_all() {
  let_on();
  drain(out_fd_, out_source_, pty_ ? Stream::pty : Stream::out);
  drain(err_fd_, err_source_, Stream::err);
}

void Process::exited(int status) {
  const bool all = late_ && !ended_by_us_ && !timed_out_;
  if (!all || !held_) drain_all();  // what is held back comes when it is read
  files_.remove();
  exit_.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  exit_.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  exit_.core = WIFSIGNALED(status) && WCOREDUMP(status);
  exit_.oom_hint = exit_.signal == SIGKILL && !killed_by_us_;
  if (all && draining())
    lingers_ = true;
  else
    finish();
}

void Process::end_now() {
  if (!std::exchange(lingers_, false)) return;
  drain_all();
  lingers_ = true;
  finish();
}

void Process::finish() {
  running_ = false;
  if (std::exchange(lingers_, false)) late_->push_back(pid_);
  // Once the time was up, the end of the first process ends nothing: others of its group may be deaf to SIGTERM.
  if (!timed_out_) deadline_ = 0;
  exit_.timed_out = timed_out_;
  exit_.seq = log_.end();
  for (auto* reader : readers_) reader->until_ = exit_.seq;
  drop_input();
  wake_readers();
}

void Process::write_stdin(ReaderChannel* from, std::string_view bytes) {
  if (!in_fd_ || in_closing_) return from->grant(static_cast<uint32_t>(bytes.size()));  // as a closed pipe: dropped
  stdin_.push_back({from, std::string(bytes)});
  if (!in_waiting_) on_in(0);
}

// Whoever waits to send more of it goes on, and finds that nobody takes it.
void Process::drop_input() {
  close(in_fd_, in_source_);
  for (auto& chunk : stdin_)
    if (chunk.from) chunk.from->grant(static_cast<uint32_t>(chunk.bytes.size() - chunk.at));
  stdin_.clear();
}

void Process::on_in(uint32_t) {
  while (in_fd_ && !stdin_.empty()) {
    auto& chunk = stdin_.front();
    ssize_t n = ::write(in_fd_.get(), chunk.bytes.data() + chunk.at, chunk.bytes.size() - chunk.at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (!in_waiting_) in_waiting_ = loop_.add(in_fd_.get(), EPOLLOUT, &in_source_).has_value();
      return;
    }
    if (n < 0) return drop_input();  // nobody reads it any more
    chunk.at += static_cast<size_t>(n);
    if (chunk.from) chunk.from->grant(static_cast<uint32_t>(n));
    if (chunk.at == chunk.bytes.size()) stdin_.pop_front();
  }
  if (!in_fd_) return;
  if (in_waiting_) {
    loop_.remove(in_fd_.get(), &in_source_);
    in_waiting_ = false;
  }
  if (in_closing_) close(in_fd_, in_source_);
}

void Process::close_stdin() {
  if (!in_fd_ || in_closing_) return;
  in_closing_ = true;
  if (pty_) {  // a terminal has no end of file of its own: its end-of-file character says it
    termios t{};
    char eof = ::tcgetattr(out_fd_.get(), &t) == 0 ? static_cast<char>(t.c_cc[VEOF]) : '\4';
    stdin_.push_back({nullptr, std::string(1, eof)});
  }
  if (!in_waiting_) on_in(0);
}

Result<void> Process::resize(uint16_t rows, uint16_t cols) {
  if (!pty_ || !out_fd_) return fail(Code::invalid, "this process has no terminal");
  winsize size{.ws_row = rows, .ws_col = cols, .ws_xpixel = 0, .ws_ypixel = 0};
  if (::ioctl(out_fd_.get(), TIOCSWINSZ, &size) < 0) return sys_error("cannot resize the terminal");
  return {};
}

Result<void> Process::signal(int signal, Target target) {
  if (signal < 0 || signal > SIGRTMAX) return fail(Code::invalid, "no such signal");
  if (!running_ && target == Target::process) return fail(Code::not_found, "the process has exited", ESRCH);
  if (signal == SIGKILL) killed_by_us_ = true;
  const bool ends = signal == SIGKILL || signal == SIGTERM;
  ended_by_us_ = ended_by_us_ || ends;
  if (lingers_) {  // its number is nobody's or another's; of its group and session somebody may be left
    if (target == Target::group) (void)::kill(-pid_, signal);
    if (target == Target::session) (void)signal_session(pid_, signal);
    if (ends) end_now();
    return {};
  }
  if (target == Target::session) {
    if (signal_session(pid_, signal) == 0) return sys_error("cannot signal the process", ESRCH);
  } else if (::kill(target == Target::process ? pid_ : -pid_, signal) < 0) {
    return sys_error("cannot signal the process");
  }
  return {};
}

void Process::on_deadline() {
  if (!timed_out_) {
    timed_out_ = true;
    (void)signal(SIGTERM, Target::group);
    deadline_ = now_ms() + grace_ms_;
  } else {
    (void)signal(SIGKILL, Target::session);
    deadline_ = 0;
  }
}

ProcessInfo Process::info() const {
  return {.pid = static_cast<uint32_t>(pid_),
          .tag = tag_,
          .command = command_,
          .cwd = cwd_,
          .user = user_,
          .pty = pty_,
          .running = running_,
          .first = log_.begin(),
          .seq = log_.end(),
          .exit = exit_};
}

bool Process::is_read() const {
  return std::ranges::any_of(readers_, [](const auto* reader) { return reader->reads_ != ReaderChannel::Reads::end; });
}

void Process::forget_reader(ReaderChannel* reader) {
  std::erase(readers_, reader);
  for (auto& chunk : stdin_) {
    if (chunk.from == reader) chunk.from = nullptr;
  }
  if (held_ && !lags()) let_on();
}

ReaderChannel::ReaderChannel(std::shared_ptr<Process> process, OutputLog::Cursor cursor, Reads reads)
    : process_(std::move(process)), cursor_(cursor), reads_(reads) {
  if (!process_->running()) until_ = process_->log().end();
  process_->readers_.push_back(this);
}

ReaderChannel::~ReaderChannel() { process_->forget_reader(this); }

Channel::Step ReaderChannel::step() {
  const bool quiet = reads_ == Reads::end;
  if (!quiet) {
    for (int i = 0; i < 4; ++i) {  // then it is somebody else's turn
      size_t space = room();
      if (space <= kPieceHeader + sizeof(uint64_t)) {
        if (cursor_.seq < until_ || process_->running()) return Step::idle;  // the host's credit wakes us
        break;
      }
      uint64_t most = std::min<uint64_t>(space - kPieceHeader, until_ - std::min(until_, cursor_.seq));
      auto piece = most == 0 ? std::nullopt : process_->log().next(cursor_, most);
      if (!piece) break;
      Writer header;
      header.u8(static_cast<uint8_t>(piece->stream));
      header.u64(piece->seq);
      if (piece->stream == Stream::gap) header.u64(piece->lost);
      send(header.data(), piece->bytes);
      if (process_->held_ && !process_->lags()) process_->let_on();
      if (i == 3) return Step::again;
    }
  }
  if (process_->running() || (!quiet && cursor_.seq < until_)) return Step::idle;
  finish(encode(process_->exit()));
  return Step::idle;
}

}  // namespace isola::guest
