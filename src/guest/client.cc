#include "guest/client.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace isola::guest {

namespace {

void set_nonblocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

Error gone() { return {Code::unavailable, "the guest has closed the link", EPIPE}; }

}  // namespace

PipeClient::PipeClient(Fd from_guest, Fd to_guest) : from_(std::move(from_guest)), to_(std::move(to_guest)) {
  set_nonblocking(from_.get());
  set_nonblocking(to_.get());
}

Result<void> PipeClient::flush() {
  while (!session_.out().empty()) {
    auto bytes = session_.out();
    ssize_t n = ::write(to_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return {};
    if (n < 0) return sys_error("cannot write to the guest");
    session_.sent(static_cast<size_t>(n));
  }
  return {};
}

Result<bool> PipeClient::pump(Milliseconds timeout) {
  ISOLA_CHECK(not_inside());
  ISOLA_CHECK(flush());
  std::vector<pollfd> fds{{from_.get(), POLLIN, 0},
                          {to_.get(), static_cast<short>(session_.out().empty() ? 0 : POLLOUT), 0}};
  for (const auto& [fd, watched] : watched_) fds.push_back({fd, watched.events, 0});
  int n = ::poll(fds.data(), fds.size(), static_cast<int>(timeout.count()));
  if (n < 0 && errno == EINTR) return true;
  if (n < 0) return sys_error("cannot wait for the guest");
  if (n == 0) return false;
  if (fds[0].revents) {
    char bytes[64 << 10];
    ssize_t got = ::read(from_.get(), bytes, sizeof bytes);
    if (got == 0) return std::unexpected(gone());
    if (got > 0) {
      inside_ = true;
      auto fed = session_.feed({bytes, static_cast<size_t>(got)});
      inside_ = false;
      ISOLA_CHECK(fed);
    }
    if (got < 0 && errno != EAGAIN && errno != EINTR) return sys_error("cannot read from the guest");
  }
  for (size_t i = 2; i < fds.size(); ++i) {
    auto at = watched_.find(fds[i].fd);
    if (!fds[i].revents || at == watched_.end()) continue;
    auto ready = at->second.ready;  // it may ignore() itself
    ready();
  }
  ISOLA_CHECK(flush());
  return true;
}

Result<void> PipeClient::pump_until(const std::function<bool()>& done, Milliseconds timeout) {
  auto end = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    Milliseconds left(-1);
    if (timeout.count() >= 0) {
      left = std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() < 0) return fail(Code::timeout, "the guest does not answer");
    }
    ISOLA_CHECK(pump(left));
  }
  return flush();
}

Result<Hello> PipeClient::hello(Milliseconds timeout) {
  ISOLA_CHECK(pump_until([this] { return session_.hello() != nullptr; }, timeout));
  return *session_.hello();
}

Result<void> PipeClient::await(uint32_t channel, const std::function<bool()>& done, const uint64_t& progress) {
  while (!done()) {
    uint64_t seen = progress;
    auto pumped = pump_until([&] { return done() || progress != seen; }, patience_);
    if (pumped) continue;
    if (pumped.error().code != Code::timeout) return pumped;
    session_.cancel(channel);
    (void)flush();
    return pumped;
  }
  return {};
}

Result<std::string> PipeClient::call(Op op, std::string_view args, std::string* data, bool patient) {
  ISOLA_CHECK(not_inside());
  struct State {
    bool ended = false, too_large = false;
    uint64_t progress = 0;
    std::string data, result;
    Error error;
  };
  auto state = std::make_shared<State>();  // outlives this call if the link breaks in the middle of it
  ChannelCallbacks on;
  on.data = [state](std::string_view bytes) {
    ++state->progress;
    state->too_large |= state->data.size() + bytes.size() > kMaxResult;
    if (!state->too_large) state->data.append(bytes);
  };
  on.end = [state](Result<std::string_view> end) {
    state->ended = true;
    if (end)
      state->result = *end;
    else
      state->error = std::move(end).error();
  };
  uint32_t channel = session_.open(op, args, std::move(on));
  auto ended = [&] { return state->ended; };
  ISOLA_CHECK(patient ? pump_until(ended) : await(channel, ended, state->progress));
  if (!state->error.message.empty()) return std::unexpected(state->error);
  if (state->too_large) return fail(Code::exhausted, "the guest's answer is too large");
  if (data) *data = std::move(state->data);
  return std::move(state->result);
}

template <typename T>
Result<T> PipeClient::call_for(Op op, std::string_view args) {
  ISOLA_TRY(std::string result, call(op, args));
  return decode<T>(result);
}

template <typename T>
Result<T> PipeClient::bulk_for(Op op, std::string_view args) {
  std::string data;
  ISOLA_TRY(std::string end, call(op, args, &data));
  return decode<T>(data);
}

Result<std::string> PipeClient::ping(std::string_view text) { return call(Op::ping, text); }

std::string encoded_go_on() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return encode(GoOn{.time = int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec});
}

namespace {
Result<void> nothing(Result<std::string> result) {
  if (!result) return std::unexpected(std::move(result).error());
  return {};
}
}  // namespace

Result<void> PipeClient::quiesce() { return nothing(call(Op::quiesce, {})); }
Result<void> PipeClient::go_on() { return nothing(call(Op::go_on, encoded_go_on())); }
Result<void> PipeClient::configure(const Configure& args) { return nothing(call(Op::configure, encode(args))); }

std::shared_ptr<Run> PipeClient::follow(Op op, std::string_view args, RunCallbacks callbacks, Credit credit) {
  auto run = std::make_shared<Run>();
  run->by_hand_ = credit == Credit::by_hand;
  auto on = std::make_shared<RunCallbacks>(std::move(callbacks));
  ChannelCallbacks channel;
  channel.reply = [run, on](std::string_view bytes) {
    auto started = decode<Started>(bytes);
    if (!started) return;
    run->pid_ = started->pid;
    if (on->started) on->started(*started);
  };
  channel.data = [run, on](std::string_view piece) {
    if (run->by_hand_) run->owed_ += static_cast<uint32_t>(piece.size());
    Reader in(piece);
    auto stream = static_cast<Stream>(in.u8());
    uint64_t seq = in.u64();
    auto bytes = in.rest();
    if (!in.ok()) return;
    if (stream == Stream::gap) {
      run->seq_ = seq;
      if (on->gap) on->gap(seq, Reader(bytes).u64());
      return;
    }
    run->seq_ = seq + bytes.size();
    const auto& sink = stream == Stream::err ? on->err : on->out;
    if (sink) sink(bytes);
    if (on->seen) on->seen(run->seq_);
  };
  channel.end = [run](Result<std::string_view> end) {
    run->ended_ = true;
    if (end)
      run->exit_ = decode<Exit>(*end);
    else
      run->exit_ = std::unexpected(std::move(end).error());
    if (run->exit_) run->pid_ = run->exit_->pid;
  };
  run->channel_ = session_.open(op, args, std::move(channel), kHostWindow, run->by_hand_);
  return run;
}

void PipeClient::consumed(const std::shared_ptr<Run>& run) {
  if (run->owed_ >= kHostWindow / 2) session_.grant(run->channel_, std::exchange(run->owed_, 0));
}

std::shared_ptr<Run> PipeClient::begin_run(const Start& start, RunCallbacks callbacks, Credit credit) {
  return follow(Op::run, encode(start), std::move(callbacks), credit);
}

std::shared_ptr<Run> PipeClient::begin_held_run(const Start& start, RunCallbacks callbacks, Credit credit) {
  return follow(Op::run_held, encode(start), std::move(callbacks), credit);
}

std::shared_ptr<Run> PipeClient::begin_whole_run(const Start& start, RunCallbacks callbacks) {
  return follow(Op::run_whole, encode(start), std::move(callbacks));
}

std::shared_ptr<Run> PipeClient::begin_attach(uint32_t pid, uint64_t from, RunCallbacks callbacks) {
  return follow(Op::attach, encode(Attach{pid, from}), std::move(callbacks));
}

Result<Exit> PipeClient::finish(const std::shared_ptr<Run>& run) {
  ISOLA_CHECK(pump_until([&] { return run->ended(); }));
  return run->exit_;
}

Result<Exit> PipeClient::run(const Start& start, RunCallbacks callbacks) {
  ISOLA_CHECK(not_inside());
  return finish(begin_run(start, std::move(callbacks)));
}

Result<void> PipeClient::send_all(uint32_t channel, std::string_view bytes, const std::function<bool()>& stop,
                                  Milliseconds timeout) {
  while (!bytes.empty() && !stop()) {
    bytes.remove_prefix(session_.send(channel, bytes));
    if (!bytes.empty()) ISOLA_CHECK(pump_until([&] { return stop() || session_.sendable(channel) > 0; }, timeout));
  }
  return flush();
}

Result<void> PipeClient::write_stdin(const std::shared_ptr<Run>& run, std::string_view bytes) {
  return send_all(run->channel_, bytes, [&] { return run->ended(); });
}

Result<Started> PipeClient::start(const Start& start) { return call_for<Started>(Op::start, encode(start)); }
Result<Processes> PipeClient::processes() { return bulk_for<Processes>(Op::processes, {}); }
Result<void> PipeClient::signal(uint32_t pid, int signal, Target target) {
  return nothing(call(Op::signal, encode(Signal{pid, signal, target})));
}
Result<Exit> PipeClient::wait(uint32_t pid) {
  ISOLA_TRY(std::string result, call(Op::wait, encode(Pid{pid}), nullptr, true));
  return decode<Exit>(result);
}
Result<void> PipeClient::resize(uint32_t pid, uint16_t rows, uint16_t cols) {
  return nothing(call(Op::resize, encode(Resize{pid, rows, cols})));
}

Result<Stat> PipeClient::stat(const StatArgs& args) { return call_for<Stat>(Op::stat, encode(args)); }
Result<void> PipeClient::mkdir(const Mkdir& args) { return nothing(call(Op::mkdir, encode(args))); }
Result<void> PipeClient::rename(const Rename& args) { return nothing(call(Op::rename, encode(args))); }
Result<void> PipeClient::remove(const Remove& args) { return nothing(call(Op::remove, encode(args))); }
Result<void> PipeClient::chmod(const Chmod& args) { return nothing(call(Op::chmod, encode(args))); }
Result<void> PipeClient::chown(const Chown& args) { return nothing(call(Op::chown, encode(args))); }
Result<void> PipeClient::symlink(const Symlink& args) { return nothing(call(Op::symlink, encode(args))); }
Result<std::string> PipeClient::readlink(const PathArgs& args) { return call(Op::readlink, encode(args)); }
Result<void> PipeClient::xattr_set(const Xattr& args) { return nothing(call(Op::xattr_set, encode(args))); }
Result<void> PipeClient::xattr_remove(const Xattr& args) { return nothing(call(Op::xattr_remove, encode(args))); }
Result<Names> PipeClient::xattr_list(const PathArgs& args) { return bulk_for<Names>(Op::xattr_list, encode(args)); }
Result<std::string> PipeClient::xattr_get(const Xattr& args) {
  std::string data;
  ISOLA_TRY(std::string end, call(Op::xattr_get, encode(args), &data));
  return data;
}
Result<Ports> PipeClient::ports() { return bulk_for<Ports>(Op::ports, {}); }
Result<Metrics> PipeClient::metrics() { return call_for<Metrics>(Op::metrics, {}); }

Result<PipeClient> open_link(pid_t guest) {
  auto end = [guest](int fd, int how) {
    auto path = "/proc/" + std::to_string(guest) + "/fd/" + std::to_string(fd);
    return Fd(::open(path.c_str(), how | O_CLOEXEC | O_NONBLOCK));
  };
  Fd from = end(kFdOutWrite, O_RDONLY), to = end(kFdInRead, O_WRONLY);
  if (!from || !to) return sys_error("cannot open the link of the guest");
  return PipeClient(std::move(from), std::move(to));
}

}  // namespace isola::guest
