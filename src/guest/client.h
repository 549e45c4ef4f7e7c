// A typed, blocking client of one guest over two fds. What the launcher, the CLI and the tests use; a server does the
// same with Session under its own event loop.
//
//   PipeClient guest(Fd(out_pipe_read_end), Fd(in_pipe_write_end));
//   ISOLA_TRY(Hello hello, guest.hello());
//   ISOLA_TRY(Exit exit, guest.run({.argv = {"echo", "hi"}}, {.out = [](std::string_view s) { print(s); }}));
//
// Calls block until they are answered and drive everything else that is under way meanwhile (runs started with
// begin_run, watches, dials): callbacks come from inside whatever call is waiting. A callback for what the guest sent
// must not call anything that waits on the same client (collect first, ask afterwards): that is refused with an error;
// it may begin runs, send and cancel. Not thread-safe. The guest's answers
// are untrusted: what does not decode, or is larger than its limit, is an error of that call; and with set_patience(),
// what does not come is one too.
#pragma once

#include <poll.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "guest/session.h"

namespace isola::guest {

struct RunCallbacks {
  std::function<void(const Started&)> started;
  std::function<void(std::string_view)> out, err;        // a PTY's output comes as out
  std::function<void(uint64_t seq, uint64_t lost)> gap;  // output was dropped before this reader got it
  std::function<void(uint64_t seq)> seen;                // after each piece: where to attach again from
};

// One run or attach under way.
class Run {
 public:
  bool ended() const { return ended_; }
  uint32_t pid() const { return pid_; }  // 0 until the guest has told
  uint64_t seq() const { return seq_; }  // everything before this has been seen
  uint32_t channel() const { return channel_; }
  const Result<Exit>& result() const { return exit_; }  // once it has ended

 private:
  friend class PipeClient;
  uint32_t channel_ = 0, pid_ = 0;
  bool by_hand_ = false;
  uint32_t owed_ = 0;  // handed out, and not said to be consumed yet
  uint64_t seq_ = 0;
  bool ended_ = false;
  Result<Exit> exit_;
};

// A byte stream to a port inside. What has come in waits in `received`, never more than a window of it: the guest may
// send more only as read() takes it out.
struct Connection {
  uint32_t channel = 0;
  bool open = false, ended = false, eof = false;
  std::string received;
  Result<Done> result;
};

class PipeClient {
 public:
  using Milliseconds = std::chrono::milliseconds;
  static constexpr size_t kMaxResult = 16 << 20;

  PipeClient(Fd from_guest, Fd to_guest);

  Session& session() { return session_; }
  // A call on whose channel nothing happens for so long is cancelled and fails with Code::timeout; the link goes on.
  // Runs, attaches and wait() may be silent for as long as they like. Below 0 (at first): for ever.
  void set_patience(Milliseconds patience) { patience_ = patience; }
  Result<Hello> hello(Milliseconds timeout = Milliseconds(10000));
  // Waits for bytes, for room, or for one of the watched fds, and handles them once. false = the time was up first.
  Result<bool> pump(Milliseconds timeout = Milliseconds(-1));
  Result<void> pump_until(const std::function<bool()>& done, Milliseconds timeout = Milliseconds(-1));
  // Calls `ready` from pump() whenever fd is readable (standard input, a signalfd), or there is room in it, until
  // ignore(fd).
  void on_readable(int fd, std::function<void()> ready) { watched_[fd] = {POLLIN, std::move(ready)}; }
  void on_writable(int fd, std::function<void()> ready) { watched_[fd] = {POLLOUT, std::move(ready)}; }
  void ignore(int fd) { watched_.erase(fd); }

  Result<std::string> ping(std::string_view text);
  Result<void> quiesce();
  Result<void> go_on();
  Result<void> configure(const Configure& configure);

  // ---- processes ----
  Result<Exit> run(const Start& start, RunCallbacks callbacks = {});
  // Callbacks have consumed what they are given when they return; by hand, it is said by consumed(), and no more than a
  // window is handed out until then.
  enum class Credit : uint8_t { by_itself, by_hand };
  std::shared_ptr<Run> begin_run(const Start& start, RunCallbacks callbacks = {}, Credit credit = Credit::by_itself);
  // The command waits in its writes for whoever takes their time to consume, and nothing is lost. A guest of an earlier
  // version refuses it with Code::unsupported.
  std::shared_ptr<Run> begin_held_run(const Start& start, RunCallbacks callbacks = {},
                                      Credit credit = Credit::by_itself);
  // The same, and its end waits for children that hold its output.
  std::shared_ptr<Run> begin_whole_run(const Start& start, RunCallbacks callbacks = {});
  void consumed(const std::shared_ptr<Run>& run);  // everything up to now
  std::shared_ptr<Run> begin_attach(uint32_t pid, uint64_t from, RunCallbacks callbacks = {});
  Result<Exit> finish(const std::shared_ptr<Run>& run);                               // waits for its end
  Result<void> write_stdin(const std::shared_ptr<Run>& run, std::string_view bytes);  // waits while the guest is full
  void close_stdin(const std::shared_ptr<Run>& run) { session_.send_eof(run->channel_); }
  void detach(const std::shared_ptr<Run>& run) { session_.cancel(run->channel_); }
  Result<Started> start(const Start& start);
  Result<Processes> processes();
  Result<void> signal(uint32_t pid, int signal, Target target = Target::process);
  Result<Exit> wait(uint32_t pid);
  Result<void> resize(uint32_t pid, uint16_t rows, uint16_t cols);

  // ---- files ----
  using Sink = std::function<Result<void>(std::string_view)>;
  using Feed = std::function<Result<size_t>(char* buffer, size_t size)>;  // 0 = no more
  Result<Stat> stat(const StatArgs& args);
  Result<Listed> list(const List& args, const std::function<void(const Entry&)>& entry);
  Result<Done> read_file(const Read& args, const Sink& sink);
  Result<std::string> read_file(const Read& args, size_t max = kMaxResult);
  Result<Done> write_file(const Write& args, const Feed& feed);
  Result<Done> write_file(const Write& args, std::string_view bytes);
  Result<void> mkdir(const Mkdir& args);
  Result<void> rename(const Rename& args);
  Result<void> remove(const Remove& args);
  Result<void> chmod(const Chmod& args);
  Result<void> chown(const Chown& args);
  Result<void> symlink(const Symlink& args);
  Result<std::string> readlink(const PathArgs& args);
  Result<std::string> xattr_get(const Xattr& args);
  Result<void> xattr_set(const Xattr& args);
  Result<void> xattr_remove(const Xattr& args);
  Result<Names> xattr_list(const PathArgs& args);

  // ---- watch, ports, metrics ----
  Result<uint32_t> watch(const Watch& args, std::function<void(const WatchEvent&)> event,
                         std::function<void(const Error&)> ended = {});  // the channel: cancel() it to stop
  Result<Ports> ports();
  // Connections wait for as long as they are told, each time; below 0: for ever.
  Result<std::shared_ptr<Connection>> dial(uint16_t port, Milliseconds timeout = Milliseconds(-1));
  // At least one byte and at most `max`; empty at the end of what the other side sends.
  Result<std::string> read(const std::shared_ptr<Connection>& connection, size_t max = 64 << 10,
                           Milliseconds timeout = Milliseconds(-1));
  // All of it, or an error: unavailable when the connection has ended meanwhile.
  Result<void> write(const std::shared_ptr<Connection>& connection, std::string_view bytes,
                     Milliseconds timeout = Milliseconds(-1));
  void close_write(const std::shared_ptr<Connection>& connection) { session_.send_eof(connection->channel); }
  void hang_up(const std::shared_ptr<Connection>& connection);  // both directions, at once
  Result<Metrics> metrics();

 private:
  Result<std::string> call(Op op, std::string_view args, std::string* data = nullptr, bool patient = false);
  template <typename T>
  Result<T> call_for(Op op, std::string_view args);
  template <typename T>
  Result<T> bulk_for(Op op, std::string_view args);
  // Pumps until `done`, as long as `progress` changes before the patience is at its end; then the channel is cancelled.
  Result<void> await(uint32_t channel, const std::function<bool()>& done, const uint64_t& progress);
  Result<void> await_stream(uint32_t channel, const bool& ended, const uint64_t& progress);
  Result<void> send_all(uint32_t channel, std::string_view bytes, const std::function<bool()>& stop,
                        Milliseconds timeout = Milliseconds(-1));
  std::shared_ptr<Run> follow(Op op, std::string_view args, RunCallbacks callbacks, Credit credit = Credit::by_itself);
  Result<void> flush();
  // What the guest sent is being handed out: no second reading may begin in the middle of it.
  Result<void> not_inside() const {
    if (inside_) return fail(Code::invalid, "a callback of the link must not wait for the link");
    return {};
  }

  Fd from_, to_;
  Session session_;
  struct Watched {
    short events;
    std::function<void()> ready;
  };
  std::map<int, Watched> watched_;
  Milliseconds patience_{-1};
  bool inside_ = false;
};

// The link of a running guest as the host (root, outside) reaches it: its pipes, opened anew through /proc.
Result<PipeClient> open_link(pid_t guest);

}  // namespace isola::guest
