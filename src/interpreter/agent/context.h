// One context: a language, a working folder, a kernel with its variables, and cells that run one after the other.
//
// The kernel starts with the context, and again when it ended by itself; a cell that was running then is told.
// Deadlines are looked at by tick(): next() says when that has to be.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "interpreter/agent/kernel.h"
#include "interpreter/agent/output.h"

namespace isola::interpreter {

using Clock = std::chrono::steady_clock;

struct Cell {
  std::string code;
  std::map<std::string, std::string> env;      // for this cell alone
  std::map<std::string, std::string> lasting;  // the sandbox's own: from now on
  std::chrono::milliseconds timeout{0};        // 0: none
  std::unique_ptr<Output> output;
  std::function<void(const Json& end)> done;
  // ---- while it runs ----
  std::string id;
  Clock::time_point began;
  std::optional<Json> reply;
  bool idle = false, exits = false;
  std::string stop;  // why it was interrupted: "timeout", "interrupted", "input"; empty: it was not
};
using CellPtr = std::shared_ptr<Cell>;

class Context {
 public:
  struct Info {
    std::string id, cwd;
    KernelSpec spec;
  };
  using Waiter = std::function<void(const Result<void>&)>;

  Context(void* zmq, std::string folder, Info info);
  ~Context();

  const Info& info() const { return info_; }
  Json describe() const;
  Kernel* kernel() { return kernel_.get(); }

  void run(CellPtr cell);
  void when_ready(Waiter waiter);  // at once, if it is
  void set_lasting(const std::map<std::string, std::string>& env);
  void interrupt();                  // the running cell
  void cancel(const CellPtr& cell);  // that cell, running or waiting
  void restart();

  // ---- the loop's ----
  void readable();  // what the kernel has said: a turn's worth
  void words();     // the same of what it wrote outside the protocol
  void reap();      // whether it ended
  void tick(Clock::time_point now);
  std::optional<Clock::time_point> next() const;

 private:
  enum class Phase { off, starting, ready };
  void start();
  void begin(CellPtr cell);
  void pump();
  void stop(const std::string& why);
  bool read(size_t most);
  void kernel_ended(int status);
  void take(const Message& message, bool said);
  void refuse_input();
  void maybe_finish();
  void finish(Json end);
  void start_failed(const Error& error);
  void say_died(const std::string& how);

  void* zmq_;
  const std::string folder_;
  Info info_;
  std::unique_ptr<Kernel> kernel_;
  Phase phase_ = Phase::off;
  std::deque<CellPtr> queue_;
  CellPtr running_;
  std::deque<Waiter> waiters_;
  std::map<std::string, std::string> lasting_;
  unsigned kernels_ = 0;  // started so far
  bool answered_ = false, heard_ = false;
  std::optional<Clock::time_point> start_by_, ask_at_, deadline_, settle_by_, settle_latest_;
  int insisted_ = 0;
};

// "exit code 1", "signal 9 (Killed; out of memory is the usual reason)".
std::string how_it_ended(int status);

}  // namespace isola::interpreter
