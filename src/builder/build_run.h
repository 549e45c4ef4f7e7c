// One build as it goes: its bases are found, its stages are planned by key, and what no earlier build did is done in
// sandboxes, step by step.
//
//   auto run = std::make_shared<BuildRun>(parts, record, spec, caller);
//   auto made = co_await run->make();           // run->record() says what came of it
//   co_await run->leave();                      // its sandboxes end, however it went
//
// One worker at a time; cancel() from any.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "builder/build_log.h"
#include "builder/context_store.h"
#include "builder/spec.h"
#include "sandbox/service.h"

namespace isola::builder {

// An image by reference becomes a template of this machine; gives its name. `credentials`: an auth.json; empty: none.
using Pull = std::function<Task<Result<std::string>>(std::string reference, std::string credentials)>;

// Whether a project may have an image at all; the error says why not.
using MayPull = std::function<Result<void>(const std::string& project, const std::string& image)>;

// What an image or a template is called here: one that a project or this machine has, or one that is here under another
// name. Code::not_found: it has to be fetched.
Result<sandbox::Source> known_base(sandbox::Service& service, const std::string& project, const std::string& from);

class BuildRun {
 public:
  struct Parts {
    sandbox::Service& service;
    ContextStore& contexts;
    Pull pull;
    MayPull may_pull;                                                   // asked before each of them
    std::chrono::milliseconds longest{std::chrono::hours(1)};           // all of it, from the first step on
    std::chrono::milliseconds longest_ready{std::chrono::minutes(10)};  // of that, until what it starts is ready
  };
  // `credentials`: for what it fetches, as an auth.json. They are kept here alone, until the bases are there.
  BuildRun(Parts parts, store::BuildRecord build, Spec spec, sandbox::Caller by, std::string credentials = {});
  ~BuildRun();

  Task<Result<void>> make();
  Task<void> leave();
  void cancel();

  bool cancelled() const { return cancelled_; }
  const std::string& project() const { return build_.project; }
  const std::string& step() const { return step_; }
  const Spec& spec() const { return spec_; }
  store::BuildRecord& record() { return build_; }
  BuildLog& log() { return log_; }

 private:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  struct Stage {
    std::string label;  // of its steps in the log, before their number; empty: the result
    std::vector<Step> steps;
    sandbox::Source base;
    std::string user, cwd;
    Variables env;
    std::vector<std::string> keys;  // after each step
    std::string key;                // of all of it
    size_t known = 0;               // steps that an earlier build did
    bool built = false;
    std::string image;  // what it has so far; empty: its base as it is
    sandbox::BoxPtr box;
  };

  Task<Result<void>> make_all();
  std::chrono::milliseconds left() const;
  Result<void> goes_on() const;  // it was not cancelled, and has time
  Task<Result<void>> find_bases();
  Result<void> read_again();
  Task<Result<sandbox::Source>> base_of(std::string from);
  Task<Result<void>> plan(Stage& stage, std::string from, std::string user, std::vector<Step> steps);
  Task<Result<std::string>> kept_step(std::string key);
  Task<Result<void>> build(Stage& stage);
  Task<Result<void>> make_box(Stage& stage);
  Task<void> end_box(Stage& stage);
  Task<Result<void>> do_step(Stage& stage, const Step& step);
  Task<Result<void>> start_what_runs(Stage& stage);
  Task<Result<void>> wait_until_ready(Stage& stage, sandbox::Running& started);
  Task<Result<void>> listen(sandbox::Running& started, std::chrono::milliseconds time);
  Task<Result<void>> run(const sandbox::BoxPtr& box, sandbox::CommandSpec spec, std::string shown);
  Task<Result<guest::Exit>> follow(const sandbox::BoxPtr& box, sandbox::CommandSpec spec);
  // `started`: what has to go on meanwhile, and is listened to.
  Task<Result<guest::Exit>> follow(const sandbox::BoxPtr& box, sandbox::Running running,
                                   sandbox::Running* started = nullptr);
  // Where relative paths begin.
  std::string folder(const std::string& cwd, const std::string& user) const;
  sandbox::CommandSpec command(const Stage& stage) const;
  sandbox::CommandSpec script(const char* text, std::vector<std::string> words) const;

  // Files (build_files.cc).
  using Source = std::function<Task<Result<std::string>>()>;  // the next bytes; empty: that was all
  Task<Result<void>> copy(Stage& stage, const Step& step);
  Task<Result<void>> copy_from_part(Stage& stage, const Step& step, std::string staging);
  Task<Result<void>> unpack(Stage& stage, std::string staging, Source source, bool packed);

  Parts parts_;
  store::BuildRecord build_;
  Spec spec_;
  const sandbox::Caller by_;
  std::string credentials_;  // until the bases are there
  BuildLog log_;
  std::chrono::steady_clock::time_point until_;
  std::string step_;  // which one is under way, for the log: "base", "1", …, "finalize"
  std::map<std::string, sandbox::Source> bases_;
  std::vector<std::unique_ptr<Stage>> stages_;  // those that are copied from
  Stage result_;
  std::atomic<bool> cancelled_ = false;
  std::mutex mutex_;
  std::set<sandbox::BoxPtr> boxes_;  // that live; under mutex_
};

}  // namespace isola::builder
