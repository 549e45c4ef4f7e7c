// Proof in production: `isola prove` is run when the server has started and from time to time after that. What came out
// is written to the ledger (prove.passed, prove.failed) and, as a setting, a failure closes the door to new sandboxes
// until a later run passes.
//
//   Prover prover(options, ask_keeper, [&](const Verdict& verdict) { … });
//   prover.tick();      // now and then; starts a run when one is due and none is under way
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/fd.h"

namespace isola::server {

// Of one run. Passed: everything held that this machine could try.
struct Verdict {
  bool passed = false;
  std::string why;                    // in one sentence, for people
  std::map<std::string, int> counts;  // held, BREACH, ERROR, untried
};

// What `isola prove --json` printed. Cut off or empty: it did not finish, and that is a failure too.
Verdict judge(std::string_view report);

// What the last run means for the door to new sandboxes: closed where it failed and that is wanted, whichever of the
// two came first.
class ProofDoor {
 public:
  using Set = std::function<void(std::string why)>;  // empty: open
  ProofDoor(bool closes, Set set) : set_(std::move(set)), closes_(closes) {}

  void heard(const Verdict& verdict);
  void set_closes(bool closes);

 private:
  void put() const;

  Set set_;
  std::mutex mutex_;
  bool closes_;
  std::string failed_;  // why, of the last run; empty: it passed, or there was none
};

class Prover {
 public:
  struct Options {
    bool at_start = false;
    std::chrono::milliseconds every{0};  // 0: never again
  };
  using Start = std::function<Result<Fd>()>;  // starts a run; its report can be read from there, to the end
  using Heard = std::function<void(const Verdict&)>;

  Prover(Options options, Start start, Heard heard);
  ~Prover();
  Prover(const Prover&) = delete;
  Prover& operator=(const Prover&) = delete;

  void tick(std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());
  void set_options(Options options) { options_ = options; }
  void wait();  // for a run that is under way

 private:
  void run();

  Options options_;
  Start start_;
  Heard heard_;
  std::thread thread_;
  std::atomic<bool> running_ = false;
  bool first_ = true;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace isola::server
