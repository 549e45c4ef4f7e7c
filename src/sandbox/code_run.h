// Code that an interpreter inside runs. To budgets, usage and the ledger it is a command, though it is no process.
//
//   ISOLA_CO_TRY(auto run, co_await service.begin_code(box, {.code = code, .task = task, .by = caller}));
//   run->started("python", "python");              // as asked for, not as the guest says; in the ledger from here on
//   auto opened = co_await (talk.open(…) || run->stopped());
//   auto first = co_await (next_line() || run->stopped());   // stopped: its budget is spent, interrupt it
//   run->ended("ok", 12);
//
// Dropped before it started it is not counted. Dropped before it ended: nobody waits for it any more, and the ledger
// says so. All but stop() is called by whoever holds it.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "sandbox/bell.h"
#include "sandbox/box.h"

namespace isola::sandbox {

class Service;

class CodeRun {
 public:
  struct Spec {
    std::string code;  // what is shown of it
    std::string task;  // empty: the sandbox's own
    Caller by = Caller();
  };
  CodeRun(std::shared_ptr<Service> service, BoxPtr box, Spec spec);
  ~CodeRun();
  CodeRun(const CodeRun&) = delete;
  CodeRun& operator=(const CodeRun&) = delete;

  const std::string& task() const { return spec_.task; }
  void started(const std::string& language, const std::string& context);
  void ended(const std::string& status, int64_t duration_ms);
  // On any worker.
  void stop(std::string why);
  // Returns when it is to be stopped: why.
  Task<std::string> stopped();

 private:
  void finish(const std::string& status, int64_t duration_ms);

  const std::shared_ptr<Service> service_;
  const BoxPtr box_;
  const Spec spec_;
  const std::string id_;
  const uint64_t span_;  // among those of its task (task_spans.h)
  bool started_ = false, ended_ = false;
  Millis begun_ = now_millis();
  std::mutex mutex_;
  std::string why_;  // it is to be stopped; under mutex_
  Bell bell_;
};

}  // namespace isola::sandbox
