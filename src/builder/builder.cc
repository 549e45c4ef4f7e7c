#include "builder/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "builder/dockerfile_spec.h"

namespace isola::builder {

namespace net = boost::asio;
using sandbox::now_millis;
using store::BuildState;

namespace {

constexpr size_t kAtOnce = 4, kAtOnceOfOne = 2;  // of all projects, of one
constexpr size_t kMostText = 1 << 20;            // of all steps together
constexpr size_t kMostBuildSteps = 1000;
constexpr size_t kMostWaiting = 32;      // of a project
constexpr size_t kMostTemplates = 1000;  // likewise
constexpr size_t kBuildsKept = 20;       // of a template, beside those that tags mean
constexpr auto kContextsKept = std::chrono::hours(7 * 24);

Result<void> check(const Spec& spec) {
  std::vector<const Step*> steps;
  for (const auto& step : spec.steps) steps.push_back(&step);
  for (const auto& part : spec.parts)
    for (const auto& step : part.steps) steps.push_back(&step);
  if (steps.size() > kMostBuildSteps) return fail(Code::invalid, fmt::format("at most {} steps", kMostBuildSteps));
  size_t all = spec.start.size() + spec.ready.size(), variables = 0;
  auto bad = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  bool nul = bad(spec.start) || bad(spec.ready);
  for (const Step* step : steps) {
    for (const auto* text : {&step->command, &step->target, &step->owner, &step->mode, &step->value, &step->run_as})
      all += text->size(), nul = nul || bad(*text);
    for (const auto& source : step->sources) all += source.size(), nul = nul || bad(source);
    for (const auto& [name, value] : step->env) variables += name.size() + value.size(), nul = nul || bad(name + value);
  }
  if (nul) return fail(Code::invalid, "a step holds a NUL byte");
  if (all > kMostText || variables > (64 << 10))
    return fail(Code::invalid, "the steps are longer than 1 MiB, or their variables than 64 KiB");
  return {};
}

std::string first_part(const std::string& name) { return name.substr(0, name.find(':')); }

}  // namespace

bool is_tag(const std::string& tag) { return sandbox::is_plain_name(tag) && tag.size() <= 63; }

Result<void> Builder::start() {
  return store().fail_unfinished_builds("the server was restarted while it was built", now_millis());
}

void Builder::sweep() { contexts_.sweep(kContextsKept); }

Result<store::BuildRecord> Builder::declare(const Asked& asked) {
  auto tags = asked.tags;
  if (auto colon = asked.name.find(':'); colon != std::string::npos) tags.push_back(asked.name.substr(colon + 1));
  if (tags.empty()) tags.push_back(sandbox::kUsualTag);
  std::string name = first_part(asked.name);
  if (!sandbox::is_plain_name(name) || is_image_id(name))
    return fail(Code::invalid, "name: use 1 to 63 of letters, digits, '-', '_' and '.', and a tag behind a ':'");
  for (const auto& tag : tags)
    if (!is_tag(tag)) return fail(Code::invalid, "tags: use letters, digits, '-', '_' and '.'");
  ISOLA_TRY(auto project, store().find_project(asked.project));
  if (project.limits.disk > 0 && asked.disk > project.limits.disk)
    return fail(Code::invalid,
                fmt::format("disk: {} bytes are more than the {} that all sandboxes of this project may have",
                            asked.disk, project.limits.disk));
  auto known = store().find_template(asked.project, name);
  if (!known && known.error().code != Code::not_found) return std::unexpected(known.error());
  if (!known) {
    ISOLA_TRY(auto all, store().list_templates(asked.project));
    if (all.size() >= kMostTemplates)
      return fail(Code::exhausted, fmt::format("a project has at most {} templates: remove one", kMostTemplates));
    known =
        store::TemplateRecord{.id = new_template_id(), .project = asked.project, .name = name, .created = now_millis()};
    // Somebody may have been faster: theirs is as good.
    if (auto made = store().insert_template(*known); !made) {
      if (made.error().code != Code::exists) return std::unexpected(made.error());
      known = store().find_template(asked.project, name);
      if (!known && known.error().code == Code::not_found)
        return std::unexpected(made.error());  // it is something else's
      if (!known) return std::unexpected(known.error());
    }
  }
  Spec spec;
  spec.tags = tags;
  store::BuildRecord build{.id = new_build_id(),
                           .template_id = known->id,
                           .project = asked.project,
                           .spec = to_json(spec),
                           .cpus = asked.cpus,
                           .memory_limit = asked.memory,
                           .disk = asked.disk,
                           .created = now_millis()};
  ISOLA_CHECK(store().put_build(build));
  ISOLA_CHECK(store().forget_old_builds(known->id, kBuildsKept));
  return build;
}

Result<void> Builder::check_bases(const std::string& project, const Spec& spec) {
  for (const auto& name : bases_of(spec)) {
    const std::string from = spec.written.meant(name);
    auto known = known_base(*parts_.service, project, from);
    if (known) continue;
    if (known.error().code != Code::not_found) return std::unexpected(known.error());
    if (!parts_.pull) return fail(Code::unsupported, "there is no template " + log::quoted(from) + " here");
    if (parts_.may_pull) ISOLA_CHECK(parts_.may_pull(project, from));
  }
  return {};
}

Result<void> Builder::begin(const std::string& template_id, const std::string& build, Spec spec, sandbox::Caller by,
                            std::string credentials) {
  ISOLA_CHECK(check(spec));
  JobPtr job;
  {
    std::lock_guard lock(mutex_);
    ISOLA_TRY(auto record, store().find_build(template_id, build));
    ISOLA_TRY(Spec declared, spec_of(record.spec));
    spec.tags = declared.tags;
    BuildRun::Parts parts{*parts_.service, contexts_,      parts_.pull,
                          parts_.may_pull, parts_.longest, parts_.longest_ready};
    job = std::make_shared<BuildRun>(std::move(parts), record, std::move(spec), std::move(by), std::move(credentials));
    auto same = [&](const auto& one) { return one.second->project() == record.project; };
    if (static_cast<size_t>(std::ranges::count_if(jobs_, same)) >= kMostWaiting)
      return fail(Code::exhausted, fmt::format("{} builds of this project are under way: wait for one", kMostWaiting));
    if (record.state != BuildState::waiting || !jobs_.emplace(build, job).second)
      return fail(Code::unavailable, "build " + build + " was begun before", EBUSY);
  }
  job->record().state = BuildState::building;
  if (auto stored = store().put_build(job->record()); !stored) {
    std::lock_guard lock(mutex_);
    jobs_.erase(build);
    return stored;
  }
  net::co_spawn(parts_.next_worker(), work(job), net::detached);
  return {};
}

void Builder::cancel(const std::string& build) {
  JobPtr job;
  {
    std::lock_guard lock(mutex_);
    if (auto at = jobs_.find(build); at != jobs_.end()) job = at->second;
  }
  if (!job) return;
  job->cancel();
  bell_.ring();
}

Result<store::BuildRecord> Builder::find(const std::string& project, const std::string& id_or_name,
                                         const std::string& build) {
  ISOLA_TRY(auto known, store().find_template(project, id_or_name));
  return store().find_build(known.id, build);
}

Result<void> Builder::remove(const std::string& project, const std::string& id_or_name) {
  ISOLA_TRY(auto known, store().find_template(project, id_or_name));
  ISOLA_TRY(auto builds, store().list_builds(known.id));
  for (const auto& build : builds) cancel(build.id);
  return store().remove_template(known.id);
}

Task<void> Builder::work(JobPtr job) {
  auto self = shared_from_this();
  for (;;) {
    uint64_t ticket = bell_.ticket();
    {
      std::lock_guard lock(mutex_);
      size_t& own = working_by_[job->project()];
      if ((working_ < kAtOnce && own < kAtOnceOfOne) || job->cancelled()) {
        ++working_;
        ++own;
        break;
      }
    }
    co_await bell_.wait(ticket);
  }
  auto begun = now_millis();
  Result<void> made = fail(Code::unavailable, "the build was cancelled");
  if (!job->cancelled()) made = co_await job->make();
  co_await job->leave();
  auto& build = job->record();
  build.finished = now_millis();
  if (made) {
    build.state = BuildState::ready;
    made = store().put_build(build, job->spec().tags);
    if (made)
      job->log().say("info", "finalize", fmt::format("ready after {:.1f} s", double(build.finished - begun) / 1000));
  }
  if (!made) {
    build.state = BuildState::failed;
    build.why = job->cancelled() ? "the build was cancelled" : made.error().message.substr(0, 4000);
    build.step = job->step();
    job->log().say("error", job->step(), build.why);
    if (auto stored = store().put_build(build); !stored)
      log::error("builder", "cannot write down that build {} failed: {}", build.id, stored.error().message);
  }
  {
    std::lock_guard lock(mutex_);
    --working_;
    if (--working_by_[build.project] == 0) working_by_.erase(build.project);
    jobs_.erase(build.id);
  }
  bell_.ring();
}

}  // namespace isola::builder
