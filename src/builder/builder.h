// Builds templates: steps run one after the other in a sandbox of the project, under its gate and limits, and what that
// has at the end becomes what sandboxes of the template are made of; with its processes, if there is a start command.
//
//   auto builder = std::make_shared<Builder>(parts);
//   ISOLA_TRY(auto build, builder->declare({.project = "default", .name = "app"}));
//   ISOLA_CHECK(builder->begin(build.template_id, build.id, spec, caller));       // goes on by itself
//   ISOLA_TRY(build, builder->find("default", "app", build.id));                  // building, ready, failed
//
// After each step that changes files the sandbox is kept as it is, by the key of everything up to there: a build that
// begins the same way goes on from the last one that is known. Any worker.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "builder/build_run.h"
#include "builder/context_store.h"
#include "builder/spec.h"
#include "sandbox/service.h"

namespace isola::builder {

// Letters, digits, '-', '_' and '.'.
bool is_tag(const std::string& tag);

class Builder : public std::enable_shared_from_this<Builder> {
 public:
  struct Parts {
    std::function<boost::asio::io_context&()> next_worker;
    std::shared_ptr<sandbox::Service> service;
    std::string folder;  // for what is uploaded
    Pull pull = {};      // fetches images; empty: none are
    // Whether builds may have an image at all, before anything is fetched; the error says why not.
    MayPull may_pull = {};
    std::chrono::milliseconds longest{std::chrono::hours(1)};           // a build, from its first step on
    std::chrono::milliseconds longest_ready{std::chrono::minutes(10)};  // of that, until what it starts is ready
  };
  explicit Builder(Parts parts) : parts_(std::move(parts)), contexts_(parts_.folder) {}

  // Builds that an earlier server left behind fail.
  Result<void> start();
  void sweep();

  struct Asked {
    std::string project = "default";
    std::string name;  // perhaps with a tag
    std::vector<std::string> tags = {};
    double cpus = 0;  // 0: the server's own
    uint64_t memory = 0;
    uint64_t disk = 0;  // at least
  };
  // The template, which is made if there is none of that name, and a build that waits for its steps. invalid: the
  // project may never have so much.
  Result<store::BuildRecord> declare(const Asked& asked);
  // What it stands on and copies from is here, or may be fetched.
  Result<void> check_bases(const std::string& project, const Spec& spec);
  // unavailable (EBUSY): it was begun before.
  // `credentials`: of whoever asks, for the registry of its image, as an auth.json; written down nowhere.
  Result<void> begin(const std::string& template_id, const std::string& build, Spec spec, sandbox::Caller by,
                     std::string credentials = {});
  void cancel(const std::string& build);
  Result<store::BuildRecord> find(const std::string& project, const std::string& id_or_name, const std::string& build);
  // With everything that was built for it.
  Result<void> remove(const std::string& project, const std::string& id_or_name);

  ContextStore& contexts() { return contexts_; }
  store::Store& store() { return parts_.service->store(); }

 private:
  using JobPtr = std::shared_ptr<BuildRun>;
  Task<void> work(JobPtr job);

  Parts parts_;
  ContextStore contexts_;
  std::mutex mutex_;
  std::map<std::string, JobPtr> jobs_;        // by build; under mutex_
  size_t working_ = 0;                        // under mutex_
  std::map<std::string, size_t> working_by_;  // by project; under mutex_
  sandbox::Bell bell_;                        // rings when one is done
};

}  // namespace isola::builder
