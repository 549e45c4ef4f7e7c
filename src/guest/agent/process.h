// The processes that the guest started, and who reads them.
//
// Output always goes into the process's OutputLog, whether somebody reads or not; each reader follows the log with its
// own cursor and its own credit. So a reader that is slow, gone or back again is nobody's problem but its own; only one
// that asked for it holds the process up: what it has not read yet stays in the log, and when half of what that can
// keep is such output, the process finds its pipe full. The end is told when the process has exited and what it left in
// its pipes has been taken over; a background grandchild that holds the pipe open delays nothing, and what it writes
// later is still logged. Unless all of the output was asked for (Op::run_whole): then the process counts as running
// until nobody can write any more, or somebody ended it.
#pragma once

#include <sys/types.h>

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "guest/agent/loop.h"
#include "guest/agent/mux.h"
#include "guest/agent/output_log.h"
#include "guest/agent/private_files.h"
#include "guest/agent/users.h"
#include "guest/messages.h"

namespace isola::guest {

class ReaderChannel;

class Process {
 public:
  // `late`: all of its output is waited for; there it puts its number when it ends after it was reaped.
  Process(Loop& loop, const Start& start, std::vector<pid_t>* late = nullptr);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  Result<void> launch(const Start& start, const User& user, const std::vector<std::string>& defaults,
                      const std::vector<std::string>& files = {});
  void exited(int status);  // reaped: takes over what is in the pipes, then tells the readers
  void end_now();           // of one that was reaped: whoever still holds its output is not waited for
  void write_stdin(ReaderChannel* from, std::string_view bytes);
  void close_stdin();
  Result<void> resize(uint16_t rows, uint16_t cols);
  Result<void> signal(int signal, Target target);
  ProcessInfo info() const;

  pid_t pid() const { return pid_; }
  bool running() const { return running_; }
  bool is_reaped() const { return !running_ || lingers_; }
  bool draining() const { return out_fd_.valid() || err_fd_.valid(); }
  bool is_read() const;  // somebody wants its output
  const Exit& exit() const { return exit_; }
  OutputLog& log() { return log_; }
  int64_t deadline() const { return deadline_; }  // 0 = none
  void on_deadline();

 private:
  friend class ReaderChannel;
  void on_out(uint32_t) {
    if (!hold_back()) take(out_fd_, out_source_, pty_ ? Stream::pty : Stream::out, kTake);
  }
  void on_err(uint32_t) {
    if (!hold_back()) take(err_fd_, err_source_, Stream::err, kTake);
  }
  void on_in(uint32_t);
  void drop_input();
  void take(Fd& fd, Source& source, Stream stream, size_t most);
  void drain(Fd& fd, Source& source, Stream stream);
  void drain_all();
  void finish();
  void close(Fd& fd, Source& source);
  uint64_t needed() const;  // the first that somebody for whom the process waits has not read
  bool lags() const;
  bool hold_back();
  void let_on();
  void wake_readers();
  void forget_reader(ReaderChannel* reader);

  static constexpr size_t kTake = 64 << 10;
  static constexpr uint64_t kMostUnread = OutputLog::kBlock * OutputLog::kSlots / 2;
  static constexpr uint64_t kMostInMemory = OutputLog::kBlock / 2;  // where the disk is full
  Loop& loop_;
  MemberSource<Process, &Process::on_out> out_source_{this};
  MemberSource<Process, &Process::on_err> err_source_{this};
  MemberSource<Process, &Process::on_in> in_source_{this};
  Fd out_fd_, err_fd_, in_fd_;  // with a PTY, out is the terminal and in a duplicate of it
  bool in_waiting_ = false, in_closing_ = false;
  struct StdinChunk {
    ReaderChannel* from;  // gets the credit back when it is consumed; null when it has gone
    std::string bytes;
    size_t at = 0;
  };
  std::deque<StdinChunk> stdin_;
  OutputLog log_;
  std::vector<ReaderChannel*> readers_;
  std::string tag_, command_, cwd_, user_;
  bool pty_, running_ = false, killed_by_us_ = false, timed_out_ = false;
  bool held_ = false;  // nobody looks at its pipes: they fill
  bool lingers_ = false, ended_by_us_ = false;
  std::vector<pid_t>* late_;
  pid_t pid_ = 0;
  uint32_t grace_ms_;
  uint64_t timeout_ms_;
  int64_t deadline_ = 0;
  Exit exit_;
  PrivateFiles files_;
};

// run, attach and wait: follows one process.
class ReaderChannel : public Channel {
 public:
  // Output and the end; the same, and the process waits for this reader; the end alone.
  enum class Reads : uint8_t { output, held, end };
  ReaderChannel(std::shared_ptr<Process> process, OutputLog::Cursor cursor, Reads reads);
  ~ReaderChannel() override;
  void on_data(std::string_view bytes) override { process_->write_stdin(this, bytes); }
  void on_eof() override { process_->close_stdin(); }
  Step step() override;

 private:
  friend class Process;
  std::shared_ptr<Process> process_;
  OutputLog::Cursor cursor_;
  Reads reads_;
  uint64_t until_ = UINT64_MAX;  // known once the process has exited
};

class ProcessTable {
 public:
  static constexpr size_t kMaxRunning = 4096, kKeepExited = 256;
  static constexpr size_t kKeepMemory = 1 << 20, kKeepFiles = 4;  // output of exited processes, together

  explicit ProcessTable(Loop& loop) : loop_(loop) {}
  Result<std::shared_ptr<Process>> start(const Start& start, const std::vector<std::string>& files = {},
                                         bool whole = false);
  Result<std::shared_ptr<Process>> find(uint32_t pid) const;
  Processes list() const;
  bool reap();             // everything that has ended, bounded per call: true = call again
  int timeout_ms() const;  // for epoll_wait: -1 = nobody has a deadline
  void check_deadlines();
  void retire_late();
  void relax() {  // nobody reads
    if (untrimmed_) trim();
  }
  void forget_output();  // of all, until now
  void set_defaults(std::vector<std::string> env) { defaults_ = std::move(env); }

 private:
  void retire(pid_t pid);
  void trim();
  Loop& loop_;
  std::unordered_map<pid_t, std::shared_ptr<Process>> table_;
  std::deque<pid_t> exited_;  // oldest first
  std::vector<pid_t> late_;
  std::vector<std::string> defaults_;
  bool untrimmed_ = false;     // some output was kept for who reads it
  int64_t next_deadline_ = 0;  // the earliest of all running processes; 0 = none
};

}  // namespace isola::guest
