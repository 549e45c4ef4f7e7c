#include "builder/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "builder/build_log.h"

namespace isola::builder {

namespace net = boost::asio;
using sandbox::now_millis;
using store::BuildState;

namespace {

constexpr size_t kAtOnce = 4, kAtOnceOfOne = 2;  // of all projects, of one
constexpr size_t kMostText = 1 << 20;            // of all steps together
constexpr size_t kMostSteps = 1000;
constexpr size_t kShown = 300;           // of a command, in an error
constexpr size_t kMostWaiting = 32;      // of a project
constexpr size_t kMostTemplates = 1000;  // likewise
constexpr size_t kBuildsKept = 20;       // of a template, beside those that tags mean
constexpr sandbox::Millis kLongestBuild = 3'600'000;
constexpr auto kLongestReady = std::chrono::minutes(10);
constexpr auto kUsualReady = std::chrono::seconds(20);  // for a start command that has no ready command
constexpr auto kContextsKept = std::chrono::hours(7 * 24);

// As Docker copies: a folder's contents into the target, a file to it or into it. Patterns are the shell's.
constexpr const char* kCopy = R"sh(
set -e
from=$1 to=$2 owner=$3 mode=$4; shift 4
chown -R -- "$owner" "$from"
if [ -n "$mode" ]; then chmod -R -- "$mode" "$from"; fi
shopt -s nullglob dotglob
several=; [ $# -gt 1 ] && several=1
for pattern in "$@"; do
  IFS=; found=( $from/$pattern ); unset IFS
  [ "$pattern" = . ] && found=( "$from" )
  [ ${#found[@]} -gt 0 ] || { echo "there is nothing like '$pattern' among the files" >&2; exit 1; }
  [ ${#found[@]} -gt 1 ] && several=1
  for one in "${found[@]}"; do
    case $one in */.|*/..) continue;; esac
    if [ -d "$one" ] && [ ! -L "$one" ]; then
      mkdir -p -- "$to"; cp -a -- "$one/." "$to/"
    elif [ -n "$several" ] || [ "${to%/}" != "$to" ] || [ -d "$to" ]; then
      mkdir -p -- "$to"; cp -a -- "$one" "$to/"
    else
      mkdir -p -- "$(dirname -- "$to")"; cp -a -- "$one" "$to"
    fi
  done
done
rm -rf -- "$from"
)sh";

bool changes_files(const Step& step) { return step.kind != Step::Kind::env && step.kind != Step::Kind::user; }

Result<void> check(const Spec& spec) {
  if (spec.steps.size() > kMostSteps) return fail(Code::invalid, fmt::format("at most {} steps", kMostSteps));
  size_t all = spec.start.size() + spec.ready.size(), variables = 0;
  auto bad = [](const std::string& text) { return text.find('\0') != std::string::npos; };
  bool nul = bad(spec.start) || bad(spec.ready);
  for (const auto& step : spec.steps) {
    for (const auto* text : {&step.command, &step.target, &step.owner, &step.mode, &step.value, &step.run_as})
      all += text->size(), nul = nul || bad(*text);
    for (const auto& source : step.sources) all += source.size(), nul = nul || bad(source);
    for (const auto& [name, value] : step.env) variables += name.size() + value.size(), nul = nul || bad(name + value);
  }
  if (nul) return fail(Code::invalid, "a step holds a NUL byte");
  if (all > kMostText || variables > (64 << 10))
    return fail(Code::invalid, "the steps are longer than 1 MiB, or their variables than 64 KiB");
  return {};
}

std::string first_part(const std::string& name) { return name.substr(0, name.find(':')); }

}  // namespace

bool is_tag(const std::string& tag) { return sandbox::is_plain_name(tag) && tag.size() <= 63; }

struct Builder::Job {
  store::BuildRecord build;
  Spec spec;
  sandbox::Caller by;
  BuildLog log;
  std::string step;  // which one is under way, for the log: "base", "1", …, "finalize"
  sandbox::Source base;
  std::string user, cwd;
  std::vector<std::pair<std::string, std::string>> env;
  std::string image;  // the last that was kept
  bool memory = false;
  std::atomic<bool> cancelled = false;
  std::mutex mutex;
  sandbox::BoxPtr box;  // under mutex

  sandbox::BoxPtr sandbox() {
    std::lock_guard lock(mutex);
    return box;
  }
  sandbox::CommandSpec command() const {
    sandbox::CommandSpec spec;
    spec.user = user;
    spec.cwd = cwd;
    for (const auto& [name, value] : env) spec.env[name] = value;
    spec.counted = false;
    spec.by = by.key;
    spec.actor = by.actor;
    return spec;
  }
  std::string resolved(const std::string& path) const {
    if (path.starts_with('/')) return path;
    return (cwd.empty() ? "/" : cwd.ends_with('/') ? cwd : cwd + "/") + path;
  }
};

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
                           .created = now_millis()};
  ISOLA_CHECK(store().put_build(build));
  ISOLA_CHECK(store().forget_old_builds(known->id, kBuildsKept));
  return build;
}

Result<void> Builder::begin(const std::string& template_id, const std::string& build, Spec spec, sandbox::Caller by) {
  ISOLA_CHECK(check(spec));
  std::shared_ptr<Job> job;
  {
    std::lock_guard lock(mutex_);
    ISOLA_TRY(auto record, store().find_build(template_id, build));
    ISOLA_TRY(Spec declared, spec_of(record.spec));
    spec.tags = declared.tags;
    job = std::make_shared<Job>(record, std::move(spec), std::move(by), BuildLog(store(), build));
    auto same = [&](const auto& one) { return one.second->build.project == record.project; };
    if (static_cast<size_t>(std::ranges::count_if(jobs_, same)) >= kMostWaiting)
      return fail(Code::exhausted, fmt::format("{} builds of this project are under way: wait for one", kMostWaiting));
    if (record.state != BuildState::waiting || !jobs_.emplace(build, job).second)
      return fail(Code::unavailable, "build " + build + " was begun before", EBUSY);
  }
  job->build.state = BuildState::building;
  if (auto stored = store().put_build(job->build); !stored) {
    std::lock_guard lock(mutex_);
    jobs_.erase(build);
    return stored;
  }
  net::co_spawn(parts_.next_worker(), work(job), net::detached);
  return {};
}

void Builder::cancel(const std::string& build) {
  std::shared_ptr<Job> job;
  {
    std::lock_guard lock(mutex_);
    if (auto at = jobs_.find(build); at != jobs_.end()) job = at->second;
  }
  if (!job) return;
  job->cancelled = true;
  bell_.ring();
  if (auto box = job->sandbox()) (void)parts_.service->kill_soon(box, job->by);
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

Task<void> Builder::work(std::shared_ptr<Job> job) {
  auto self = shared_from_this();
  for (;;) {
    uint64_t ticket = bell_.ticket();
    {
      std::lock_guard lock(mutex_);
      size_t& own = working_by_[job->build.project];
      if ((working_ < kAtOnce && own < kAtOnceOfOne) || job->cancelled) {
        ++working_;
        ++own;
        break;
      }
    }
    co_await bell_.wait(ticket);
  }
  auto begun = now_millis();
  Result<void> made = fail(Code::unavailable, "the build was cancelled");
  if (!job->cancelled) made = co_await make(*job);
  if (auto box = job->sandbox()) (void)co_await parts_.service->kill(box, EndReason::killed, "the build is over");
  auto& build = job->build;
  build.finished = now_millis();
  if (made) {
    build.state = BuildState::ready;
    build.image = job->image;
    build.memory = job->memory;
    build.digest = job->base.digest;
    build.base = job->base.base;
    build.user = job->user;
    build.cwd = job->cwd;
    for (const auto& [name, value] : job->env) build.env[name] = value;
    made = store().put_build(build);
    if (made) made = store().put_tags(build.template_id, job->spec.tags, build.id);
    if (made)
      job->log.say("info", "finalize", fmt::format("ready after {:.1f} s", double(build.finished - begun) / 1000));
  }
  if (!made) {
    build.state = BuildState::failed;
    build.why = job->cancelled ? "the build was cancelled" : made.error().message.substr(0, 4000);
    build.step = job->step;
    job->log.say("error", job->step, build.why);
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

Task<Result<void>> Builder::make(Job& job) {
  job.step = "base";
  ISOLA_CO_TRY(job.base, parts_.service->source_of(job.build.project, job.spec.from));
  job.user = job.spec.user.empty() ? job.base.user : job.spec.user;
  job.cwd = job.base.cwd;
  for (const auto& [name, value] : job.base.env) job.env.emplace_back(name, value);
  job.image = job.base.image;
  job.log.say("info", "base", "FROM " + job.spec.from);
  // How far an earlier build came that began the same way.
  std::string key = (job.base.image.empty() ? job.base.digest : job.base.image) + " " + job.spec.network;
  bool force = job.spec.force;
  size_t known = 0;
  std::string from;
  std::vector<std::string> keys;
  auto user = job.user, cwd = job.cwd;
  auto env = job.env;
  for (size_t i = 0; i < job.spec.steps.size(); ++i) {
    const Step& step = job.spec.steps[i];
    force = force || step.force;
    keys.push_back(key = key_after(key, step, user, cwd, env));
    if (step.kind == Step::Kind::user) user = step.value;
    if (step.kind == Step::Kind::workdir) cwd = step.value;
    for (const auto& pair : step.env) env.push_back(pair);
    if (force || !changes_files(step)) continue;
    if (auto there = store().find_step(job.build.project, key)) known = i + 1, from = there->id;
  }
  if (!from.empty()) job.image = from;
  const bool works = known < job.spec.steps.size() || !job.spec.start.empty();
  for (size_t i = 0; i < job.spec.steps.size(); ++i) {
    const Step& step = job.spec.steps[i];
    job.step = std::to_string(i + 1);
    if (job.cancelled) co_return fail(Code::unavailable, "the build was cancelled");
    job.log.say("info", job.step, (i < known ? "CACHED " : "") + step.line);
    if (i >= known && !job.sandbox()) ISOLA_CO_CHECK(co_await make_box(job, job.image));
    if (step.kind == Step::Kind::user) job.user = step.value;
    if (step.kind == Step::Kind::workdir) job.cwd = job.resolved(step.value);
    for (const auto& pair : step.env) job.env.push_back(pair);
    if (i < known) continue;
    ISOLA_CO_CHECK(co_await do_step(job, step));
    if (!changes_files(step)) continue;
    sandbox::SnapshotRequest keep;
    keep.name = keys[i];
    keep.memory = false;
    keep.kind = store::ImageKind::step;
    keep.by = job.by;
    ISOLA_CO_TRY(auto image, co_await parts_.service->snapshot(job.sandbox(), std::move(keep)));
    job.image = image.id;
  }
  if (known > 0) (void)store().touch_image(job.image, now_millis());
  job.step = "finalize";
  if (works && !job.spec.start.empty()) ISOLA_CO_CHECK(co_await start_what_runs(job));
  co_return Result<void>();
}

Task<Result<void>> Builder::make_box(Job& job, std::string image) {
  sandbox::CreateRequest request;
  request.grants = false;  // what is built must not depend on whose secrets were there
  request.project = job.build.project;
  request.by = job.by.key;
  request.actor = job.by.actor;
  request.limits = parts_.service->settings().default_limits;
  if (job.build.cpus > 0) request.limits.cpus = job.build.cpus;
  if (job.build.memory_limit > 0) request.limits.memory = job.build.memory_limit;
  request.timeout = kLongestBuild;
  request.metadata["isola.build"] = job.build.id;
  request.network = job.spec.network.empty() ? "all" : job.spec.network;
  request.files_only = true;
  request.cold = true;  // nothing runs in it that the steps did not start
  request.one_shot = true;
  request.auto_resume = false;
  if (image.empty())
    request.template_name = job.base.base, request.of_machine = true;
  else
    request.step = image;
  ISOLA_CO_TRY(sandbox::Created created, co_await parts_.service->create(std::move(request)));
  {
    std::lock_guard lock(job.mutex);
    job.box = created.box;
  }
  // Whoever cancelled it meanwhile found nothing to end.
  if (job.cancelled) co_return fail(Code::unavailable, "the build was cancelled");
  co_return Result<void>();
}

// Runs to its end, with everything that it says in the log.
Task<Result<guest::Exit>> Builder::follow(Job& job, sandbox::CommandSpec spec) {
  auto box = job.sandbox();
  ISOLA_CO_TRY(sandbox::Running running, co_await parts_.service->run(box, std::move(spec)));
  for (;;) {
    auto piece = co_await running.channel->read_frame();
    if (!piece) break;
    if (piece->size() > guest::kPieceHeader)
      job.log.output(job.step, std::string_view(*piece).substr(guest::kPieceHeader));
  }
  job.log.end_output(job.step);
  ISOLA_CO_TRY(std::string bytes, co_await running.channel->end());
  ISOLA_CO_TRY(guest::Exit exit, guest::decode<guest::Exit>(bytes));
  parts_.service->command_ended(box, running.info.id, exit);
  co_return exit;
}

Task<Result<void>> Builder::run(Job& job, sandbox::CommandSpec spec, std::string shown) {
  if (shown.size() > kShown) shown = shown.substr(0, kShown) + "…";
  auto exit = co_await follow(job, std::move(spec));
  if (!exit) co_return fail(exit.error().code, "failed to run command '" + shown + "': " + exit.error().message);
  if (exit->signal != 0)
    co_return fail(Code::invalid, fmt::format("failed to run command '{}': signal {}", shown, exit->signal));
  if (exit->code != 0)
    co_return fail(Code::invalid, fmt::format("failed to run command '{}': exit status {}", shown, exit->code));
  co_return Result<void>();
}

Task<Result<void>> Builder::do_step(Job& job, const Step& step) {
  auto spec = job.command();
  switch (step.kind) {
    case Step::Kind::env: co_return Result<void>();
    case Step::Kind::copy: co_return co_await copy(job, step);
    case Step::Kind::run: {
      spec.shell = step.command;
      if (!step.run_as.empty()) spec.user = step.run_as;
      co_return co_await run(job, std::move(spec), step.command);
    }
    case Step::Kind::user: {
      spec.argv = {"true"};
      spec.cwd = "/";
      co_return co_await run(job, std::move(spec), "USER " + step.value);
    }
    case Step::Kind::workdir: {
      std::string owner = spec.user.empty() ? "root" : spec.user;
      spec.argv = {"bash",    "-c",    "[ -d \"$1\" ] || { mkdir -p -- \"$1\" && chown -- \"$2\" \"$1\"; }",
                   "workdir", job.cwd, owner};
      spec.user = "root";
      spec.cwd = "/";
      co_return co_await run(job, std::move(spec), "WORKDIR " + step.value);
    }
  }
  co_return fail(Code::internal, "an unknown step");
}

Task<Result<void>> Builder::copy(Job& job, const Step& step) {
  ISOLA_CO_TRY(Fd file, contexts_.open(job.build.project, step.context));
  char magic[2] = {};
  const bool packed = ::pread(file.get(), magic, 2, 0) == 2 && magic[0] == '\x1f' && magic[1] == '\x8b';
  const std::string staging = "/tmp/.isola-" + new_command_id();
  auto box = job.sandbox();
  auto spec = job.command();
  spec.env.clear();
  spec.user = "root";
  spec.cwd = "/";
  spec.argv = {"bash",   "-c",    "mkdir -m 700 -- \"$1\" && exec tar -C \"$1\" $2 -xf -",
               "unpack", staging, packed ? "-z" : ""};
  spec.stdin_mode = guest::Stdin::pipe;
  ISOLA_CO_TRY(sandbox::Running running, co_await parts_.service->run(box, spec));
  std::string piece(256 << 10, '\0');
  for (;;) {
    ssize_t n = ::read(file.get(), piece.data(), piece.size());
    if (n <= 0) break;
    std::string_view bytes(piece.data(), static_cast<size_t>(n));
    if (auto sent = co_await running.channel->write(bytes); !sent) break;  // tar has ended: see why below
  }
  running.channel->close_write();
  for (;;) {
    auto said = co_await running.channel->read_frame();
    if (!said) break;
    if (said->size() > guest::kPieceHeader)
      job.log.output(job.step, std::string_view(*said).substr(guest::kPieceHeader));
  }
  job.log.end_output(job.step);
  ISOLA_CO_TRY(std::string end, co_await running.channel->end());
  ISOLA_CO_TRY(guest::Exit exit, guest::decode<guest::Exit>(end));
  parts_.service->command_ended(box, running.info.id, exit);
  if (exit.code != 0) co_return fail(Code::invalid, "the files of the step cannot be unpacked: see the log");
  spec.stdin_mode = guest::Stdin::null;
  std::string target = job.resolved(step.target), owner = step.owner.empty() ? "root:root" : step.owner;
  spec.argv = {"bash", "-c", kCopy, "copy", staging, target, owner, step.mode};
  spec.argv.insert(spec.argv.end(), step.sources.begin(), step.sources.end());
  co_return co_await run(job, std::move(spec), step.line);
}

// What runs in every sandbox of the template: it is started, waited for, and kept as it runs.
Task<Result<void>> Builder::start_what_runs(Job& job) {
  if (!job.sandbox()) ISOLA_CO_CHECK(co_await make_box(job, job.image));
  job.log.say("info", "finalize", "START " + job.spec.start);
  auto box = job.sandbox();
  auto spec = job.command();
  spec.shell = job.spec.start;
  ISOLA_CO_TRY(sandbox::Running started, co_await parts_.service->run(box, spec));
  parts_.service->detach(std::move(started));
  sandbox::Bell never;
  if (job.spec.ready.empty()) (void)co_await never.wait_for(never.ticket(), kUsualReady);
  auto until = std::chrono::steady_clock::now() + kLongestReady;
  std::chrono::milliseconds pause(100);
  while (!job.spec.ready.empty()) {
    auto ask = job.command();
    ask.shell = job.spec.ready;
    ask.timeout = kLongestReady;
    ISOLA_CO_TRY(guest::Exit exit, co_await follow(job, std::move(ask)));
    if (exit.code == 0 && exit.signal == 0) break;
    if (job.cancelled) co_return fail(Code::unavailable, "the build was cancelled");
    if (std::chrono::steady_clock::now() > until)
      co_return fail(Code::timeout,
                     "the start command was not ready within 10 minutes: '" + job.spec.ready + "' says no");
    (void)co_await never.wait_for(never.ticket(), pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(2000));
  }
  job.log.say("info", "finalize", "READY");
  sandbox::SnapshotRequest keep;
  keep.memory = true;
  keep.kind = store::ImageKind::built;
  keep.by = job.by;
  ISOLA_CO_TRY(auto image, co_await parts_.service->snapshot(box, std::move(keep)));
  job.image = image.id;
  job.memory = true;
  co_return Result<void>();
}

}  // namespace isola::builder
