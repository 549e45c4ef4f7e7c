#include "builder/build_run.h"

#include <fmt/format.h>

#include <boost/asio/experimental/awaitable_operators.hpp>

#include "base/log.h"
#include "builder/dockerfile_spec.h"
#include "sandbox/bell.h"
#include "vault/seal.h"

namespace isola::builder {

using sandbox::now_millis;

namespace {

constexpr size_t kShown = 300;                             // of a command, in an error
constexpr auto kUsualReady = std::chrono::seconds(20);     // for a start command that has no ready command
constexpr auto kListens = std::chrono::milliseconds(100);  // between looks at it, while the ready command runs
constexpr std::chrono::milliseconds kLong = std::chrono::hours(24);
constexpr auto kLastWords = std::chrono::seconds(1);  // of one that died
constexpr size_t kMostFrames = 64;                    // of its output, at one look
const std::string kStarted = "started";               // whose output it is, in the log

std::unexpected<Error> was_cancelled() { return fail(Code::unavailable, "the build was cancelled"); }

std::string words_of(std::chrono::milliseconds time) {
  return time.count() % 1000 ? fmt::format("{}ms", time.count()) : fmt::format("{}s", time.count() / 1000);
}

bool changes_files(const Step& step) { return step.kind != Step::Kind::env && step.kind != Step::Kind::user; }

std::string resolved(const std::string& folder, const std::string& path) {
  if (path.starts_with('/')) return path;
  return (folder.empty() ? "/" : folder.ends_with('/') ? folder : folder + "/") + path;
}

// Of "user[:group]". The two that every template has are known; all others live where people do.
std::string home_of(std::string user) {
  user.resize(std::min(user.size(), user.find(':')));
  return user.empty() || user == "root" || user == "0" ? "/root" : "/home/" + user;
}

Task<void> pass(std::chrono::milliseconds time) {
  sandbox::Bell never;
  (void)co_await never.wait_for(never.ticket(), time);
}

}  // namespace

Result<sandbox::Source> known_base(sandbox::Service& service, const std::string& project, const std::string& from) {
  auto known = service.source_of(project, from);
  if (known || known.error().code != Code::not_found) return known;
  auto otherwise = template_for(from);
  return otherwise ? service.source_of(project, *otherwise) : known;
}

BuildRun::BuildRun(Parts parts, store::BuildRecord build, Spec spec, sandbox::Caller by, std::string credentials)
    : parts_(std::move(parts)),
      build_(std::move(build)),
      spec_(std::move(spec)),
      by_(std::move(by)),
      credentials_(std::move(credentials)),
      log_(parts_.service.store(), build_.id),
      until_(std::chrono::steady_clock::now() + parts_.longest) {}

BuildRun::~BuildRun() { vault::wipe(credentials_); }

void BuildRun::cancel() {
  cancelled_ = true;
  std::set<sandbox::BoxPtr> boxes;
  {
    std::lock_guard lock(mutex_);
    boxes = boxes_;
  }
  for (const auto& box : boxes) (void)parts_.service.kill_soon(box, by_);
}

Task<void> BuildRun::leave() {
  for (auto& stage : stages_) co_await end_box(*stage);
  co_await end_box(result_);
}

Task<Result<void>> BuildRun::make() {
  until_ = std::chrono::steady_clock::now() + parts_.longest;
  auto made = co_await make_all();
  // Its sandboxes end with its time, and what was under way in them says so in its own words.
  if (!made && std::chrono::steady_clock::now() >= until_) co_return goes_on();
  co_return made;
}

std::chrono::milliseconds BuildRun::left() const {
  return std::chrono::ceil<std::chrono::milliseconds>(until_ - std::chrono::steady_clock::now());
}

Result<void> BuildRun::goes_on() const {
  if (cancelled_) return was_cancelled();
  if (left().count() > 0) return {};
  return fail(Code::timeout, "the build took longer than " + words_of(parts_.longest) + " (builds.timeout)");
}

Task<Result<void>> BuildRun::make_all() {
  step_ = "base";
  ISOLA_CO_CHECK(co_await find_bases());
  for (size_t i = 0; i < spec_.parts.size(); ++i) {
    auto stage = std::make_unique<Stage>();
    stage->label = fmt::format("stage {} ", i);
    ISOLA_CO_CHECK(co_await plan(*stage, spec_.parts[i].from, "root", spec_.parts[i].steps));
    stages_.push_back(std::move(stage));
  }
  ISOLA_CO_CHECK(co_await plan(result_, spec_.from, spec_.user, spec_.steps));
  ISOLA_CO_CHECK(co_await build(result_));
  step_ = "finalize";
  if (!spec_.start.empty()) ISOLA_CO_CHECK(co_await start_what_runs(result_));
  build_.image = result_.image;
  build_.memory = !spec_.start.empty();
  build_.digest = result_.base.digest;
  build_.base = result_.base.base;
  build_.user = result_.user;
  build_.cwd = result_.cwd;
  for (const auto& [name, value] : result_.env) build_.env[name] = value;
  co_return Result<void>();
}

// ---- what it stands on ----------------------------------------------------------------------------------------------

Task<Result<sandbox::Source>> BuildRun::base_of(std::string from) {
  from = spec_.written.meant(from);
  auto known = known_base(parts_.service, build_.project, from);
  if (known || known.error().code != Code::not_found || !parts_.pull || !spec_.fetches) co_return known;
  // Whoever began the build may have looked before; names that come out of variables, and a ceiling that sank since
  // then, are known only here.
  if (parts_.may_pull) ISOLA_CO_CHECK(parts_.may_pull(build_.project, from));
  log_.say("info", "base", "fetching " + from);
  // It may come too late for this build, and is there for the next one.
  using namespace boost::asio::experimental::awaitable_operators;
  auto pulled = parts_.pull(from, credentials_);
  auto time = pass(left());
  auto first = co_await (std::move(pulled) || std::move(time));
  if (first.index() == 1) {
    ISOLA_CO_CHECK(goes_on());
    co_return fail(Code::timeout, "fetching " + from + " takes too long");
  }
  ISOLA_CO_TRY(std::string name, std::get<0>(std::move(first)));
  co_return parts_.service.source_of(build_.project, name, true);
}

Task<Result<void>> BuildRun::find_bases() {
  for (const auto& from : bases_of(spec_)) {
    ISOLA_CO_TRY(bases_[from], co_await base_of(from));
    ISOLA_CO_CHECK(goes_on());
  }
  vault::wipe(credentials_);
  co_return read_again();
}

// With the variables of its bases, now that they are here.
Result<void> BuildRun::read_again() {
  if (spec_.written.text.empty()) return {};
  auto variables = [&](const std::string& from) -> std::optional<store::Labels> {
    auto base = bases_.find(from);
    return base == bases_.end() ? std::nullopt : std::optional(base->second.env);
  };
  ISOLA_TRY(Spec again, read_written(spec_.written, variables));
  spec_.from = std::move(again.from);
  spec_.steps = std::move(again.steps);
  spec_.parts = std::move(again.parts);
  if (!spec_.own_start) spec_.start = again.start;
  return {};
}

// The image of a step, if it is really there; what the launcher lost is forgotten.
Task<Result<std::string>> BuildRun::kept_step(std::string key) {
  auto known = parts_.service.store().find_step(build_.project, key);
  if (!known && known.error().code == Code::not_found) co_return std::string();
  if (!known) co_return std::unexpected(known.error());
  auto there = co_await parts_.service.check_image(known->id);
  if (there) {
    // It is needed when its stage is built, after all the stages before it: the sweep takes what nobody has used.
    (void)parts_.service.store().touch_image(known->id, now_millis());
    co_return known->id;
  }
  const Code why = there.error().code;
  if (why != Code::not_found && why != Code::corrupt && why != Code::unsupported)
    co_return std::unexpected(there.error());
  log::warn("builder", "image {} of a step is lost and made anew: {}", known->id, there.error().message);
  ISOLA_CO_CHECK(parts_.service.store().spend_step(known->id));
  co_return std::string();
}

// How far an earlier build came that began the same way.
Task<Result<void>> BuildRun::plan(Stage& stage, std::string from, std::string user, std::vector<Step> steps) {
  auto known = bases_.find(from);
  if (known == bases_.end()) {  // read with its variables, a name came out as another
    ISOLA_CO_TRY(bases_[from], co_await base_of(from));
    known = bases_.find(from);
  }
  stage.base = known->second;
  stage.steps = std::move(steps);
  stage.user = user.empty() ? stage.base.user : user;
  stage.cwd = stage.base.cwd;
  if (spec_.at_home) {
    const bool built = !stage.base.image.empty() || stage.base.name != stage.base.base;
    if (!built) stage.cwd.clear();
    if (built && !stage.base.user.empty()) stage.user = stage.base.user;
  }
  for (const auto& [name, value] : stage.base.env) stage.env.emplace_back(name, value);
  stage.image = stage.base.image;
  log_.say("info", "base", stage.label + "FROM " + from);
  stage.key = (stage.base.image.empty() ? stage.base.digest : stage.base.image) + " " + spec_.network;
  bool force = spec_.force;
  auto cwd = stage.cwd;
  auto by = stage.user;
  auto env = stage.env;
  for (const Step& step : stage.steps) {
    force = force || step.force;
    Step meant = step;  // a stage by what it holds, not by its number
    if (!step.stage.empty()) meant.stage = stages_.at(std::stoul(step.stage))->key;
    stage.keys.push_back(stage.key = key_after(stage.key, meant, by, folder(cwd, by), env));
    if (step.kind == Step::Kind::user) by = step.value;
    if (step.kind == Step::Kind::workdir) cwd = resolved(folder(cwd, by), step.value);
    for (const auto& pair : step.env) env.push_back(pair);
  }
  // From the last one backwards: the first that is there is as far as it gets.
  size_t usable = stage.steps.size();
  if (force)
    for (usable = 0; usable < stage.steps.size() && !spec_.force && !stage.steps[usable].force;) ++usable;
  for (size_t i = usable; i > 0 && stage.known == 0; --i) {
    if (!changes_files(stage.steps[i - 1])) continue;
    ISOLA_CO_TRY(std::string image, co_await kept_step(stage.keys[i - 1]));
    if (!image.empty()) stage.known = i, stage.image = image;
  }
  co_return Result<void>();
}

// ---- steps ----------------------------------------------------------------------------------------------------------

Task<Result<void>> BuildRun::build(Stage& stage) {
  if (stage.built) co_return Result<void>();
  for (size_t i = 0; i < stage.steps.size(); ++i) {
    const Step& step = stage.steps[i];
    step_ = std::to_string(i + 1);
    ISOLA_CO_CHECK(goes_on());
    const bool done = i < stage.known;
    log_.say("info", step_, stage.label + (done ? "CACHED " : "") + step.line);
    if (!done && !stage.box) ISOLA_CO_CHECK(co_await make_box(stage));
    if (step.kind == Step::Kind::user) stage.user = step.value;
    if (step.kind == Step::Kind::workdir) stage.cwd = resolved(folder(stage.cwd, stage.user), step.value);
    for (const auto& pair : step.env) stage.env.push_back(pair);
    if (done) continue;
    ISOLA_CO_CHECK(co_await do_step(stage, step));
    if (!changes_files(step)) continue;
    sandbox::SnapshotRequest keep;
    keep.name = stage.keys[i];
    keep.memory = false;
    keep.kind = store::ImageKind::step;
    keep.by = by_;
    ISOLA_CO_TRY(auto image, co_await parts_.service.snapshot(stage.box, std::move(keep)));
    stage.image = image.id;
  }
  if (stage.known > 0) (void)parts_.service.store().touch_image(stage.image, now_millis());
  stage.built = true;
  co_return Result<void>();
}

Task<Result<void>> BuildRun::make_box(Stage& stage) {
  sandbox::CreateRequest request;
  request.grants = false;  // what is built must not depend on whose secrets were there
  request.project = build_.project;
  request.by = by_.key;
  request.actor = by_.actor;
  request.limits = parts_.service.settings().default_limits;
  if (build_.cpus > 0) request.limits.cpus = build_.cpus;
  if (build_.memory_limit > 0) request.limits.memory = build_.memory_limit;
  ISOLA_CO_CHECK(goes_on());
  request.limits.disk = std::max(request.limits.disk, build_.disk);
  request.timeout = left().count();
  request.metadata["isola.build"] = build_.id;
  request.network = spec_.network.empty() ? "all" : spec_.network;
  request.files_only = true;
  request.cold = true;  // nothing runs in it that the steps did not start
  request.one_shot = true;
  request.auto_resume = false;
  if (stage.image.empty())
    request.template_name = stage.base.base, request.of_machine = true;
  else
    request.step = stage.image;
  ISOLA_CO_TRY(sandbox::Created created, co_await parts_.service.create(std::move(request)));
  stage.box = created.box;
  {
    std::lock_guard lock(mutex_);
    boxes_.insert(created.box);
  }
  co_return goes_on();  // whoever cancelled it meanwhile found nothing to end
}

Task<void> BuildRun::end_box(Stage& stage) {
  if (!stage.box) co_return;
  auto box = std::exchange(stage.box, nullptr);
  (void)co_await parts_.service.kill(box, EndReason::killed, "the build is over");
  std::lock_guard lock(mutex_);
  boxes_.erase(box);
}

std::string BuildRun::folder(const std::string& cwd, const std::string& user) const {
  return cwd.empty() && spec_.at_home ? home_of(user) : cwd;
}

sandbox::CommandSpec BuildRun::command(const Stage& stage) const {
  sandbox::CommandSpec spec;
  spec.user = stage.user;
  spec.cwd = stage.cwd;
  for (const auto& [name, value] : stage.env) spec.env[name] = value;
  spec.counted = false;
  spec.by = by_.key;
  spec.actor = by_.actor;
  return spec;
}

// Of our own: as root, in whatever shell there is.
sandbox::CommandSpec BuildRun::script(const char* text, std::vector<std::string> words) const {
  sandbox::CommandSpec spec;
  spec.user = "root";
  spec.cwd = "/";
  spec.argv = {"/bin/sh", "-c",
               "if command -v bash >/dev/null; then exec bash -c \"$0\" \"$@\"; else exec sh -c \"$0\" \"$@\"; fi",
               text};
  spec.argv.insert(spec.argv.end(), words.begin(), words.end());
  spec.counted = false;
  spec.by = by_.key;
  spec.actor = by_.actor;
  return spec;
}

// Runs to its end, with everything that it says in the log.
Task<Result<guest::Exit>> BuildRun::follow(const sandbox::BoxPtr& box, sandbox::CommandSpec spec) {
  ISOLA_CO_TRY(sandbox::Running running, co_await parts_.service.run(box, std::move(spec)));
  co_return co_await follow(box, std::move(running));
}

Task<Result<guest::Exit>> BuildRun::follow(const sandbox::BoxPtr& box, sandbox::Running running,
                                           sandbox::Running* started) {
  for (;;) {
    auto piece = co_await running.channel->read_frame_for(started ? std::chrono::milliseconds(kListens) : kLong);
    if (!piece) break;
    if (piece->size() > guest::kPieceHeader) log_.output(step_, std::string_view(*piece).substr(guest::kPieceHeader));
    if (started) ISOLA_CO_CHECK(co_await listen(*started, std::chrono::milliseconds(0)));
  }
  log_.end_output(step_);
  ISOLA_CO_TRY(std::string bytes, co_await running.channel->end());
  ISOLA_CO_TRY(guest::Exit exit, guest::decode<guest::Exit>(bytes));
  exit = co_await parts_.service.judged(box, running.info.id, exit);
  parts_.service.command_ended(box, running.info.id, exit);
  co_return exit;
}

Task<Result<void>> BuildRun::run(const sandbox::BoxPtr& box, sandbox::CommandSpec spec, std::string shown) {
  if (shown.size() > kShown) shown = shown.substr(0, kShown) + "…";
  auto exit = co_await follow(box, std::move(spec));
  if (!exit) co_return fail(exit.error().code, "failed to run command '" + shown + "': " + exit.error().message);
  if (exit->signal != 0)
    co_return fail(Code::invalid, fmt::format("failed to run command '{}': signal {}", shown, exit->signal));
  if (exit->code != 0)
    co_return fail(Code::invalid, fmt::format("failed to run command '{}': exit status {}", shown, exit->code));
  co_return Result<void>();
}

Task<Result<void>> BuildRun::do_step(Stage& stage, const Step& step) {
  auto spec = command(stage);
  switch (step.kind) {
    case Step::Kind::env: co_return Result<void>();
    case Step::Kind::copy: co_return co_await copy(stage, step);
    case Step::Kind::run: {
      spec.shell = step.command;
      if (!step.run_as.empty()) spec.user = step.run_as;
      co_return co_await run(stage.box, std::move(spec), step.command);
    }
    case Step::Kind::user: {
      spec.argv = {"true"};
      spec.cwd = "/";
      co_return co_await run(stage.box, std::move(spec), "USER " + step.value);
    }
    case Step::Kind::workdir: {
      constexpr const char* kMake = "[ -d \"$1\" ] || { mkdir -p -- \"$1\" && chown -- \"$2\" \"$1\"; }";
      auto make = script(kMake, {"workdir", stage.cwd, stage.user.empty() ? "root" : stage.user});
      co_return co_await run(stage.box, std::move(make), "WORKDIR " + step.value);
    }
  }
  co_return fail(Code::internal, "an unknown step");
}

// What the start command says goes into the log for as long as nobody knows whether it is ready. One that fails before
// that fails the build; one that ends well has left a daemon behind.
Task<Result<void>> BuildRun::listen(sandbox::Running& started, std::chrono::milliseconds time) {
  const auto until = std::chrono::steady_clock::now() + time;
  sandbox::Bell never;
  for (size_t frames = 0;;) {
    ISOLA_CO_CHECK(goes_on());
    auto known = started.box->find_command(started.info.id);
    const bool ended = known && known->ended != 0;
    const bool failed = ended && (known->exit.code != 0 || known->exit.signal != 0);
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    auto wait =
        failed ? std::chrono::milliseconds(kLastWords) : std::clamp(left, std::chrono::milliseconds(0), kListens);
    std::optional<std::string> piece;
    if (started.channel) piece = co_await started.channel->read_frame_for(wait);
    if (!piece) started.channel.reset();  // nothing more comes
    if (piece && piece->size() > guest::kPieceHeader)
      log_.output(step_, std::string_view(*piece).substr(guest::kPieceHeader), kStarted);
    if (piece && !piece->empty() && ++frames < kMostFrames) continue;
    if (failed) {
      log_.end_output(step_, kStarted);
      std::string shown = spec_.start.size() > kShown ? spec_.start.substr(0, kShown) + "…" : spec_.start;
      std::string how = known->exit.signal != 0 ? fmt::format("signal {}", known->exit.signal)
                                                : fmt::format("exit status {}", known->exit.code);
      co_return fail(Code::invalid, "the start command '" + shown + "' ended before it was ready: " + how);
    }
    if (left.count() <= 0) co_return Result<void>();
    if (!piece) (void)co_await never.wait_for(never.ticket(), wait);
    frames = 0;
  }
}

Task<Result<void>> BuildRun::wait_until_ready(Stage& stage, sandbox::Running& started) {
  const std::chrono::milliseconds most = parts_.longest_ready;
  if (spec_.ready.empty()) co_return co_await listen(started, std::min<std::chrono::milliseconds>(kUsualReady, most));
  auto until = std::chrono::steady_clock::now() + most;
  for (std::chrono::milliseconds pause(100);; pause = std::min(pause * 2, std::chrono::milliseconds(2000))) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    if (left.count() <= 0)
      co_return fail(Code::timeout, "the start command was not ready within " + words_of(most) +
                                        " (builds.ready_timeout): '" + spec_.ready + "' says no");
    auto ask = command(stage);
    ask.shell = spec_.ready;
    ask.timeout = left;
    ISOLA_CO_TRY(sandbox::Running asking, co_await parts_.service.run(stage.box, std::move(ask)));
    ISOLA_CO_TRY(guest::Exit exit, co_await follow(stage.box, std::move(asking), &started));
    if (exit.code == 0 && exit.signal == 0) co_return Result<void>();
    ISOLA_CO_CHECK(co_await listen(started, std::min(pause, left)));
  }
}

// What runs in every sandbox of the template: it is started, waited for, and kept as it runs.
Task<Result<void>> BuildRun::start_what_runs(Stage& stage) {
  if (!stage.box) ISOLA_CO_CHECK(co_await make_box(stage));
  log_.say("info", "finalize", "START " + spec_.start);
  auto spec = command(stage);
  spec.shell = spec_.start;
  ISOLA_CO_TRY(sandbox::Running started, co_await parts_.service.run(stage.box, spec));
  parts_.service.detach({stage.box, started.info, nullptr, stage.box->use()});  // its end is heard of
  ISOLA_CO_CHECK(co_await wait_until_ready(stage, started));
  ISOLA_CO_CHECK(co_await listen(started, std::chrono::milliseconds(0)));
  log_.end_output(step_, kStarted);
  started.channel.reset();
  log_.say("info", "finalize", "READY");
  sandbox::SnapshotRequest keep;
  keep.memory = true;
  keep.kind = store::ImageKind::built;
  keep.by = by_;
  ISOLA_CO_TRY(auto image, co_await parts_.service.snapshot(stage.box, std::move(keep)));
  stage.image = image.id;
  co_return Result<void>();
}

}  // namespace isola::builder
