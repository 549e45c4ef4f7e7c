#include "sandbox/service.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/untold.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

// Does not keep the launcher's link alive: what waits on one worker may go when the link's own worker is gone.
Task<Result<Fd>> scan_channel_of(std::weak_ptr<LauncherLink> link) {
  auto launcher = link.lock();
  if (!launcher) co_return fail(Code::unavailable, "the server is stopping");
  co_return co_await launcher->scan_channel();
}

}  // namespace

Service::Service(Parts parts) : parts_(std::move(parts)), accounts_(parts_.ledger, parts_.settings.prices) {
  if (parts_.secret.empty()) parts_.secret = new_token();
  desk_ = std::make_shared<VolumeDesk>(parts_.launcher, parts_.next_worker);
  auto connect = [launcher = std::weak_ptr(parts_.launcher)] { return scan_channel_of(launcher); };
  scanner_ = ScanLink::make(parts_.next_worker(), connect, parts_.settings.scan_patience);
}
Service::~Service() = default;

Settings Service::settings() const {
  std::shared_lock lock(mutex_);
  return parts_.settings;
}

void Service::set_settings(Settings settings) {
  accounts_.set_prices(settings.prices);
  scanner_->set_patience(settings.scan_patience);
  std::unique_lock lock(mutex_);
  parts_.settings = std::move(settings);
}

void Service::close_door(std::string why) {
  std::unique_lock lock(mutex_);
  closed_ = std::move(why);
}

size_t Service::idle() const {
  constexpr auto kCountEvery = std::chrono::seconds(5);
  constexpr Millis kIdle = 10 * 60 * 1000;
  std::lock_guard counting(idle_.mutex);
  auto now = std::chrono::steady_clock::now();
  if (idle_.at != decltype(now)() && now - idle_.at < kCountEvery) return idle_.count;
  Millis before = now_millis() - kIdle;
  std::shared_lock lock(mutex_);
  idle_.count = static_cast<size_t>(std::count_if(boxes_.begin(), boxes_.end(), [&](const auto& one) {
    const BoxPtr& box = one.second;
    return box->state() == State::running && !box->in_use() && box->last_active() < before;
  }));
  idle_.at = now;
  return idle_.count;
}

void Service::Counters::add_create(const Latency& latency) {
  for (size_t i = 0; i < create_steps.size(); ++i) {
    auto time = latency.of(static_cast<Step>(i));
    if (time.count() <= 0) continue;
    ++create_steps[i].count;
    create_steps[i].nanos += static_cast<uint64_t>(time.count());
  }
}

size_t Service::living() const {
  std::shared_lock lock(mutex_);
  return boxes_.size();
}

// ---- start and stop -------------------------------------------------------------------------------------------------

Task<Result<void>> Service::start() {
  LauncherLink::Listener listener;
  listener.ended = [weak = weak_from_this()](const launcher::Ended& ended) {
    if (auto self = weak.lock()) self->heard_end(ended);
  };
  listener.gate_event = [weak = weak_from_this()](const gate::Event& event, uint64_t number) {
    if (auto self = weak.lock()) self->heard_gate(event, number);
  };
  listener.gate_known = [weak = weak_from_this()]() -> uint64_t {
    auto self = weak.lock();
    if (!self) return 0;
    self->gate_records_.refused = false;  // what it refused comes again from here on, before what followed it
    return self->gate_records_.written;
  };
  ISOLA_CO_CHECK(find_gate_records());
  listener.connected = [weak = weak_from_this()] {
    auto self = weak.lock();
    if (!self) return;
    ++self->connections_;
    if (self->ready_) net::co_spawn(self->parts_.next_worker(), self->reown(), net::detached);
  };
  parts_.launcher->start(std::move(listener));
  ISOLA_CO_TRY(auto there, co_await parts_.launcher->list());
  uint64_t connections = connections_;
  std::set<std::string> alive;
  for (const auto& summary : there)
    if (!summary.parked) alive.insert(summary.id);
  ISOLA_CO_TRY(auto totals, parts_.ledger.usage({}, ledger::GroupBy::project));
  for (const auto& total : totals) accounts_.begin_project(total.key, total.used);
  ISOLA_CO_TRY(auto projects, parts_.store.list_projects());
  for (const auto& project : projects) accounts_.set_project(project.id, project.budget);
  ISOLA_CO_TRY(auto tasks, parts_.store.list_tasks());
  for (const auto& task : tasks) ISOLA_CO_CHECK(accounts_.begin_task(task));
  ISOLA_CO_TRY(auto known, parts_.store.living());
  std::vector<Left> left;
  for (auto& record : known) {
    bool there_now = alive.erase(record.id) > 0;
    left.push_back({std::move(record), there_now});
  }
  ISOLA_CO_CHECK(co_await take_back(std::move(left)));
  ISOLA_CO_CHECK(recall_grants());
  // What is left was made and never acknowledged. Ephemeral ones (isola run) belong to whoever holds their connection.
  for (const auto& summary : there) {
    if (!alive.contains(summary.id) || summary.ephemeral) continue;
    log::warn("sandbox", "ending {}: nobody knows it", summary.id);
    (void)co_await parts_.launcher->kill(summary.id);
  }
  co_await undo_volumes();
  co_await find_warm();
  ready_ = true;
  parts_.launcher->keep_records();  // every one that they are of is known by now
  // The launcher was lost and found meanwhile: it knows nothing of what was said before.
  if (connections_ != connections) net::co_spawn(parts_.next_worker(), reown(), net::detached);
  net::co_spawn(parts_.next_worker(), sweep(), net::detached);
  net::co_spawn(parts_.next_worker(), watch_grants(), net::detached);
  co_return Result<void>();
}

Task<void> Service::sweep() {
  auto self = shared_from_this();
  net::steady_timer pause(co_await net::this_coro::executor);
  while (ready_) {
    pause.expires_after(settings().sweep);
    co_await pause.async_wait(net::use_awaitable);
    if (ready_) co_await sweep_once();
    if (ready_) co_await sweep_images();
    if (ready_) scrub_next();
    if (ready_) co_await sweep_volumes();
    if (ready_) co_await sweep_warm();
    if (ready_) co_await fit_pools();
  }
}

// Those whose end nobody heard of: it came before they were known here, or while the launcher was being restarted.
Task<void> Service::sweep_gone(const std::vector<launcher::SandboxSummary>& there) {
  std::set<std::string> alive;
  for (const auto& summary : there) alive.insert(summary.id);
  std::vector<BoxPtr> missing;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [id, box] : boxes_)
      if (!alive.contains(id)) missing.push_back(box);
  }
  auto lives = [](const BoxPtr& box) {
    return (box->state() == State::running || box->state() == State::frozen) && !box->is_shut();
  };
  for (const auto& box : missing) {
    if (!lives(box)) continue;
    auto owned = co_await parts_.launcher->own(box->id());  // it may be younger than the list
    if (!owned && owned.error().code == Code::not_found && lives(box))
      co_await found_gone(box, EndReason::boundary_failure, "it ended unseen");
  }
}

Task<void> Service::sweep_once() {
  auto there = co_await parts_.launcher->list();
  if (!there) co_return;  // it is being restarted
  co_await sweep_gone(*there);
  std::map<std::string, uint64_t> seen;
  std::vector<std::string> reap;
  for (const auto& summary : *there) {
    if (summary.parked || summary.ephemeral) continue;
    if (auto known = find_any(summary.id)) {
      // One that sleeps and yet lives: a resume whose answer got lost.
      if (store::is_asleep((*known)->state()) && !(*known)->is_shut())
        net::co_spawn((*known)->home(), found_awake(*known), net::detached);
      continue;
    }
    std::lock_guard lock(launch_mutex_);
    auto before = strangers_.find(summary.id);
    uint64_t mark = before == strangers_.end() ? launches_ : before->second;
    // Seen twice, and every launch that could have made it is over.
    bool nobodys = before != strangers_.end() && (launching_.empty() || *launching_.begin() >= mark);
    if (nobodys)
      reap.push_back(summary.id);
    else
      seen[summary.id] = mark;
  }
  {
    std::lock_guard lock(launch_mutex_);
    strangers_ = std::move(seen);
  }
  for (const auto& id : reap) {
    log::warn("sandbox", "ending {}: nobody knows it", id);
    (void)co_await parts_.launcher->kill(id);
  }
}

void Service::stop() {
  ready_ = false;
  tell_births();
  grants_bell_.ring();
  questions_.stop();
  searches_.stop();
  std::vector<BoxPtr> boxes;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [id, box] : boxes_) boxes.push_back(box);
  }
  for (const auto& box : boxes) {
    (void)parts_.store.touch({{box->id(), box->last_active()}});
    accounts_.write(*box);
  }
}

void Service::add(const BoxPtr& box) {
  std::unique_lock lock(mutex_);
  if (boxes_.try_emplace(box->id(), box).second) ++homes_[&box->home()];
  lock.unlock();
  arm(box);
}

// From here on it is found by its name and its key.
bool Service::publish(const BoxPtr& box) {
  auto [name, key] = box->of_record([](const auto& r) { return std::pair(r.name, r.key); });
  std::unique_lock lock(mutex_);
  if (!boxes_.contains(box->id())) return false;  // ended meanwhile
  if (!name.empty()) names_[box->project() + "\n" + name] = box->id();
  if (!key.empty()) keys_[box->project() + "\n" + key] = box->id();
  return true;
}

// ---- looking --------------------------------------------------------------------------------------------------------

namespace {
std::string what_became_of(const store::SandboxRecord& record) {
  std::string what = "sandbox " + record.id + " has ended (" + std::string(to_string(record.end_reason)) + ")";
  if (!record.end_detail.empty()) what += ": " + record.end_detail;
  return what;
}
}  // namespace

BoxPtr Service::living_one(const std::string& project, const std::string& id_or_name) const {
  std::shared_lock lock(mutex_);
  auto at = boxes_.find(id_or_name);
  if (at == boxes_.end() && !names_.empty()) {
    auto named = names_.find(project + "\n" + id_or_name);
    if (named != names_.end()) at = boxes_.find(named->second);
  }
  // Another project's sandbox is answered exactly like none at all.
  return at != boxes_.end() && at->second->project() == project ? at->second : nullptr;
}

Result<BoxPtr> Service::find(const std::string& project, const std::string& id_or_name) {
  if (auto box = living_one(project, id_or_name)) return box;
  auto record = look(project, id_or_name);
  if (!record) return std::unexpected(record.error());
  return fail(Code::not_found, what_became_of(*record));
}

Result<BoxPtr> Service::find_any(const std::string& id) {
  std::shared_lock lock(mutex_);
  auto at = boxes_.find(id);
  if (at != boxes_.end()) return at->second;
  return fail(Code::not_found, "there is no sandbox " + log::quoted(id));
}

std::vector<std::pair<std::string, std::string>> Service::makers() const {
  std::vector<std::pair<std::string, std::string>> all;
  std::shared_lock lock(mutex_);
  all.reserve(boxes_.size());
  for (const auto& [id, box] : boxes_) all.emplace_back(id, box->made_by());
  return all;
}

Result<store::SandboxRecord> Service::look(const std::string& project, const std::string& id_or_name) {
  if (auto box = living_one(project, id_or_name)) return box->record();
  if (is_sandbox_id(id_or_name)) {
    auto record = parts_.store.find_sandbox(id_or_name);
    if (record && record->project == project) return record;
    if (!record && record.error().code != Code::not_found) return record;
  }
  // A name is free again when its sandbox has ended: it leads to no record, but whoever asks may learn why.
  if (auto ended = parts_.store.find_ended(project, id_or_name))
    return fail(Code::not_found, log::quoted(id_or_name) + " is nobody's name now: " + what_became_of(*ended));
  return fail(Code::not_found, "there is no sandbox " + log::quoted(id_or_name));
}

Task<Result<store::SandboxPage>> Service::list(store::SandboxFilter filter, std::string cursor, size_t limit) {
  Result<store::SandboxPage> page = fail(Code::internal, "not asked");
  if (filter.searches()) {
    std::string project = filter.project;
    std::function<Result<store::SandboxPage>()> question = [this, filter, cursor, limit]() mutable {
      filter.until = std::chrono::steady_clock::now() + kQuestionPatience;
      return parts_.store.list_sandboxes(filter, cursor, limit);
    };
    page = co_await searches_.ask<store::SandboxPage>(std::move(project), std::move(question));
  } else {
    page = parts_.store.list_sandboxes(filter, cursor, limit);
  }
  if (!page && page.error().code == Code::timeout)
    co_return fail(Code::timeout, "too many sandboxes had to be looked at: ask for a state, or for fewer of them");
  if (!page) co_return page;
  // The store hears of uses with each sample only.
  std::shared_lock lock(mutex_);
  for (auto& record : page->sandboxes)
    if (auto at = boxes_.find(record.id); at != boxes_.end())
      record.last_active = at->second->in_use() ? now_millis() : at->second->last_active();
  co_return page;
}

// Of one that sleeps: what its image takes.
Task<Result<launcher::StatsReply>> Service::stats(BoxPtr box) {
  auto record = box->record();
  if (!store::is_asleep(record.state)) co_return co_await parts_.launcher->stats(box->id());
  launcher::StatsReply kept;
  if (auto image = parts_.store.find_image(record.image)) kept.disk_bytes = image->bytes();
  co_return kept;
}

Task<Result<uint64_t>> Service::page_cache(BoxPtr box) {
  if (store::is_asleep(box->state())) co_return 0;
  co_return co_await parts_.launcher->page_cache(box->id());
}

Task<Result<void>> Service::write_file(BoxPtr box, std::string path, std::string content, std::string user) {
  ISOLA_CO_TRY(auto link, co_await this->link(box));
  co_return co_await write_over(std::move(link), std::move(path), std::move(content), std::move(user));
}

Task<Result<void>> Service::write_over(std::shared_ptr<GuestLink> link, std::string path, std::string content,
                                       std::string user, guest::WriteMode how) {
  guest::Write write{.path = std::move(path), .user = std::move(user), .how = how, .parents = true};
  auto channel = link->open(guest::Op::write, guest::encode(write));
  ISOLA_CO_TRY(std::string ready, co_await channel->reply());
  ISOLA_CO_CHECK(co_await channel->write(content));
  channel->close_write();
  ISOLA_CO_TRY(std::string done, co_await channel->end());
  co_return Result<void>();
}

// ---- changing -------------------------------------------------------------------------------------------------------

Task<Result<store::SandboxRecord>> Service::update(BoxPtr box, Update update, Caller by) {
  if (update.timeout && *update.timeout < 0) co_return fail(Code::invalid, "timeout must not be negative");
  if (update.idle_limit && *update.idle_limit < 0) co_return fail(Code::invalid, "idle_timeout must not be negative");
  for (const auto& time : {update.delete_after, update.freeze_after, update.archive_after})
    if (time && *time < 0)
      co_return fail(Code::invalid, "delete_after, freeze_after and archive_after must not be negative");
  if (update.metadata) ISOLA_CO_CHECK(check_metadata(*update.metadata));
  Box::Turn turn = co_await box->turn();
  auto record = box->record();
  auto lifetime = record.lifetime;
  if (update.timeout) {
    Millis deadline = *update.timeout ? now_millis() + *update.timeout : 0;
    bool later = deadline == 0 || (lifetime.deadline != 0 && deadline > lifetime.deadline);
    if (!update.only_extend || later) lifetime.deadline = deadline, lifetime.timeout = *update.timeout;
  }
  if (update.idle_limit) lifetime.idle_limit = *update.idle_limit;
  lifetime.at_end = update.at_end.value_or(lifetime.at_end);
  lifetime.auto_resume = update.auto_resume.value_or(lifetime.auto_resume);
  lifetime.delete_after = update.delete_after.value_or(lifetime.delete_after);
  lifetime.freeze_after = update.freeze_after.value_or(lifetime.freeze_after);
  lifetime.archive_after = update.archive_after.value_or(lifetime.archive_after);
  store::SandboxChange change;
  json changed = json::array();
  if (lifetime != record.lifetime) change.lifetime = lifetime;
  if (lifetime.deadline != record.lifetime.deadline) changed.push_back("deadline");
  if (lifetime.idle_limit != record.lifetime.idle_limit) changed.push_back("idle_timeout");
  if (lifetime.at_end != record.lifetime.at_end) changed.push_back("at_end");
  if (lifetime.auto_resume != record.lifetime.auto_resume) changed.push_back("auto_resume");
  if (lifetime.delete_after != record.lifetime.delete_after) changed.push_back("delete_after");
  if (lifetime.freeze_after != record.lifetime.freeze_after) changed.push_back("freeze_after");
  if (lifetime.archive_after != record.lifetime.archive_after) changed.push_back("archive_after");
  if (update.budget && *update.budget != record.budget) change.budget = update.budget, changed.push_back("budget");
  if (update.metadata && *update.metadata != record.metadata)
    change.metadata = update.metadata, changed.push_back("metadata");
  if (changed.empty() && !change.lifetime) co_return record;
  ISOLA_CO_CHECK(parts_.store.change_sandbox(box->id(), change));
  // In one step with the look at its state, as an end of its time begins in one step with the look at its clock: who is
  // told of more time has it.
  bool there = true;
  box->change([&](auto& r) {
    there = r.state != State::ending && r.state != State::ended;
    r.lifetime = lifetime;
    if (change.budget) r.budget = *change.budget;
    if (change.metadata) r.metadata = *change.metadata;
  });
  if (!there) co_return has_ended(box->id());
  if (change.lifetime || change.budget) arm(box);
  json data = {{"changed", changed}, {"deadline", lifetime.deadline}};
  this->record(ledger::Kind::sandbox_updated, box, data.dump(), by);
  co_return box->record();
}

// Frozen and thawed only from where it was seen to be: one whose end began meanwhile stays at its end.
Task<Result<void>> Service::freeze(BoxPtr box, std::string why, Caller by, std::function<bool()> still) {
  Box::Turn turn = co_await box->turn();
  if (still && !still()) co_return conflict("there is no reason to freeze it any more");
  auto before = box->record();
  // Frozen by hand, it is not thawed by the next call any more.
  if (before.state == State::frozen && before.end_detail == kIdleFreeze && why.empty()) {
    ISOLA_CO_CHECK(parts_.store.set_state(box->id(), State::frozen));
    (void)box->change_from(State::frozen, [](auto& r) { r.end_detail.clear(); });
    co_return Result<void>();
  }
  if (before.state != State::running) co_return conflict("only a running sandbox can be frozen");
  ISOLA_CO_CHECK(co_await parts_.launcher->freeze(box->id()));
  co_await take_stock(box);
  store::Why because{.detail = why};
  if (box->state() != State::running) co_return conflict("the sandbox is ending");
  if (auto noted = parts_.store.set_state(box->id(), State::frozen, because); !noted) {
    (void)co_await parts_.launcher->thaw(box->id());  // it says that it runs: then it does
    co_return noted;
  }
  if (!box->change_from(State::running, [&](auto& r) { r.state = State::frozen, r.end_detail = why; }))
    co_return conflict("the sandbox is ending");
  accounts_.set_frozen(*box, true);
  box->link_may_be_silent(true);
  json data = {{"changed", {"state"}}, {"state", "frozen"}};
  if (!why.empty()) data["reason"] = why;
  record(ledger::Kind::sandbox_updated, box, data.dump(), by);
  co_return Result<void>();
}

Task<Result<void>> Service::thaw(BoxPtr box, Caller by) {
  auto use = box->use();
  Box::Turn turn = co_await box->turn();
  co_return co_await thaw_now(box, std::move(by));
}

// Its turn is the caller's.
Task<Result<void>> Service::thaw_now(BoxPtr box, Caller by) {
  if (box->state() == State::running) co_return Result<void>();
  if (box->state() != State::frozen) co_return conflict("only a frozen sandbox can be thawed");
  if (auto spent = held_by(box)) co_return fail(Code::exhausted, spent->text() + "; raise it first");
  co_await take_stock(box);
  ISOLA_CO_CHECK(co_await parts_.launcher->thaw(box->id()));
  if (box->state() != State::frozen) co_return conflict("the sandbox is ending");
  if (auto noted = parts_.store.set_state(box->id(), State::running); !noted) {
    (void)co_await parts_.launcher->freeze(box->id());  // it says that it is frozen: then it is
    co_return noted;
  }
  if (!box->change_from(State::frozen, [](auto& r) { r.state = State::running, r.end_detail.clear(); }))
    co_return conflict("the sandbox is ending");
  // Frozen because its time was up: it has as much again.
  auto lifetime = box->record().lifetime;
  if (lifetime.deadline && lifetime.deadline <= now_millis() && lifetime.timeout) {
    lifetime.deadline = now_millis() + lifetime.timeout;
    ISOLA_CO_CHECK(parts_.store.set_lifetime(box->id(), lifetime));
    box->change([&](auto& r) { r.lifetime = lifetime; });
  }
  accounts_.set_frozen(*box, false);
  box->link_may_be_silent(false);
  record(ledger::Kind::sandbox_updated, box, R"({"changed":["state"],"state":"running"})", by);
  arm(box);
  // One that was frozen when this server found it: what runs in it could not be asked for before.
  net::co_spawn(box->home(), catch_up(box), net::detached);
  if (box->lacks_certificate.exchange(false)) net::co_spawn(box->home(), place_certificate(box, true), net::detached);
  co_return Result<void>();
}

// ---- ending ---------------------------------------------------------------------------------------------------------

// From here on it is ending, for the first reason that came: `reason` and `detail` are what stands. On disk first:
// whatever happens to us now, it is known that this one is to end, and why. Where that cannot be written it ends all
// the same: a full disk is no reason to live on beyond a deadline.
Result<void> Service::begin_end(const BoxPtr& box, EndReason& reason, std::string& detail, const Caller& by,
                                const OnlyIf& only_if) {
  bool first = false, wanted = true;
  box->change([&](auto& r) {
    first = r.state != State::ending && r.state != State::ended;
    wanted = !first || !only_if || only_if(r);
    if (!wanted) return;
    if (!first) {
      reason = r.end_reason;
      detail = r.end_detail;
      return;
    }
    r.state = State::ending;
    r.end_reason = reason;
    r.end_detail = detail;
  });
  if (!wanted) return conflict("there is no reason to end it any more");
  if (!first) return {};
  box->set_ender(by);
  {
    std::unique_lock lock(mutex_);
    ending_[box->project()].insert(box->id());
  }
  store::Why why{reason, detail};
  auto noted = parts_.store.set_state(box->id(), State::ending, why);
  if (!noted) log::error("sandbox", "cannot write down that {} is to end: {}", box->id(), noted.error().message);
  return noted;
}

Result<void> Service::kill_soon(const BoxPtr& box, const Caller& by) {
  EndReason reason = EndReason::killed;
  std::string detail;
  if (box->state() == State::ended) return {};
  const State before = box->state();
  if (before != State::running && before != State::ending) box->unasked = false;  // asleep or frozen, it says nothing
  auto noted = begin_end(box, reason, detail, by);
  net::co_spawn(
      box->home(),
      [self = shared_from_this(), box]() -> Task<void> {
        co_await net::post(net::use_awaitable);  // behind the answer that is about to be sent on this thread
        auto ended = co_await self->kill(box);
        if (!ended) log::error("sandbox", "{} does not end: {}", box->id(), ended.error().message);
      },
      net::detached);
  return noted;
}

// What callers were told of its commands: once its processes are gone, nobody can ask it for what a killed server did
// not come to write. Neither a guest that is silent nor a disk that is slow keeps it alive. A server that is killed
// before this is over finds it ending, and asks it then.
Task<void> Service::write_down_commands(BoxPtr box, bool can_speak) {
  if (box->commands().empty() && !(box->unasked && can_speak)) co_return;
  using namespace boost::asio::experimental::awaitable_operators;
  net::steady_timer patience(co_await net::this_coro::executor, std::chrono::seconds(1));
  auto first = co_await (commands_written(box, can_speak) || patience.async_wait(net::as_tuple(net::use_awaitable)));
  if (first.index() == 1) log::warn("sandbox", "{} ends before the ledger has all of its commands: no time", box->id());
}

Task<void> Service::commands_written(BoxPtr box, bool can_speak) {
  if (box->unasked && can_speak) {
    if (auto told = co_await look_at_commands(box, false); !told)
      log::warn("sandbox", "{} ends and does not say what ran in it: {}", box->id(), told.error().message);
  }
  if (box->commands().empty()) co_return;
  if (auto written = co_await flush_ledger(); !written)
    log::warn("sandbox", "{} ends before the ledger has its commands: {}", box->id(), written.error().message);
}

Task<Result<void>> Service::kill(BoxPtr box, EndReason reason, std::string detail, Caller by, OnlyIf only_if) {
  auto self = shared_from_this();
  if (box->state() == State::ended) co_return Result<void>();
  const State before = box->state();
  auto begun = begin_end(box, reason, detail, by, only_if);
  if (!begun && box->state() != State::ending && box->state() != State::ended) co_return begun;
  co_await write_down_commands(box, before == State::running || before == State::ending);
  if (untold().has(box->id())) {
    net::any_io_executor here = co_await net::this_coro::executor;
    net::co_spawn(here, tell_gate(parts_.launcher, box->id()), net::detached);
    co_await net::post(here, net::use_awaitable);  // it is on its way by now: the same as the kill's, and so before it
  }
  auto ended = co_await kill_there(box->id());
  if (!ended && ended.error().code != Code::not_found) {
    kill_later(box);
    co_return std::unexpected(ended.error());
  }
  finish(box, reason, detail, ended ? &ended->usage : nullptr);
  co_await box->wait_ended();
  co_return Result<void>();
}

// not_found: there is nothing of it.
Task<Result<launcher::Ended>> Service::kill_there(std::string id) {
  for (int attempt = 0;; ++attempt) {
    auto ended = co_await parts_.launcher->kill(id);
    if (ended || ended.error().code != Code::unavailable || attempt >= 50) co_return ended;
    // The launcher is being restarted.
    Bell never;
    (void)co_await never.wait_for(never.ticket(), std::chrono::milliseconds(100));
  }
}

void Service::heard_end(const launcher::Ended& ended) {
  BoxPtr box;
  {
    std::shared_lock lock(mutex_);
    auto at = boxes_.find(ended.id);
    if (at == boxes_.end()) return;
    box = at->second;
  }
  auto record = box->record();
  // It was to end: then for that reason, whoever of kill() and us is first.
  if (record.state == State::ending) return finish(box, record.end_reason, record.end_detail, &ended.usage);
  // A pause, a resume or a rollback is under way: it finds out itself.
  if (store::is_asleep(record.state) || box->is_shut()) return;
  net::co_spawn(box->home(), heard_end_now(box, ended), net::detached);
}

// The word may be of an earlier life: each of our workers has a line to the launcher, and what one of them brought back
// (a pause and a resume, a rollback) may have been quicker than another that only reads of the end before that.
Task<void> Service::heard_end_now(BoxPtr box, launcher::Ended ended) {
  auto self = shared_from_this();
  for (;;) {
    auto owned = co_await parts_.launcher->own(box->id());
    State now = box->state();
    if (owned || now == State::ended || store::is_asleep(now) || box->is_shut()) co_return;
    if (now == State::ending) co_return finish(box, box->record().end_reason, box->record().end_detail, &ended.usage);
    if (owned.error().code == Code::not_found) break;
    Bell never;  // it cannot say just now: being restarted, perhaps
    (void)co_await never.wait_for(never.ticket(), std::chrono::milliseconds(100));
  }
  std::string detail = ended.reason == EndReason::oom ? "the memory limit was reached" : "";
  if (box->may_be_paused) {
    accounts_.charge(*box, ended.usage);
    co_return co_await found_gone(box, ended.reason, detail);
  }
  finish(box, ended.reason, detail, &ended.usage);
}

// The ledger has the end before the store says that it is over: whoever dies in between finds the sandbox in the store,
// gone, and writes the end down again; nobody finds it ended without a word of it in the ledger.
void Service::finish(const BoxPtr& box, EndReason reason, const std::string& detail,
                     const launcher::StatsReply* usage) {
  if (!box->claim_end()) return;
  Millis now = now_millis();
  box->change([&](auto& r) {
    r.state = State::ending;
    r.end_reason = reason;
    r.end_detail = detail;
    r.ended = now;
  });
  if (usage) accounts_.charge(*box, *usage);
  accounts_.write(*box);
  box->drop_link();
  auto record = box->record();
  json data = {{"reason", to_string(reason)}, {"lived_ms", now - record.created}};
  if (!detail.empty()) data["detail"] = detail;
  if (usage) data["memory_peak_bytes"] = usage->memory_peak_bytes, data["oom_kills"] = usage->oom_kills;
  auto event = event_of(ledger::Kind::sandbox_ended, box, data.dump(-1, ' ', false, json::error_handler_t::replace),
                        box->ender(), {});
  (void)append(event);
  // What cannot be written now stays in the ledger's queue: the sandbox is over either way. Listeners hear of it when
  // whoever looks sees it, too.
  auto written = [weak = weak_from_this(), box, event](const Result<uint64_t>&) {
    auto self = weak.lock();
    if (!self) return;
    net::post(box->home(), [self, box, event] {
      self->bury(box);
      self->events_.publish(event);
    });
  };
  if (!parts_.ledger.flush(written)) written(uint64_t{0});
}

void Service::bury(const BoxPtr& box) {
  auto record = box->record();
  if (auto stored = parts_.store.set_end(record.id, record.end_reason, record.end_detail, record.ended); !stored) {
    log::error("sandbox", "cannot write down the end of {}: {}", box->id(), stored.error().message);
    net::co_spawn(box->home(), write_end_later(box), net::detached);
  }
  {
    std::unique_lock lock(mutex_);
    if (boxes_.erase(record.id)) --homes_[&box->home()];
    if (auto leaving = ending_.find(record.project); leaving != ending_.end()) {
      leaving->second.erase(record.id);
      if (leaving->second.empty()) ending_.erase(leaving);
    }
    auto free = [&](auto& map, const std::string& name) {
      auto at = map.find(record.project + "\n" + name);
      if (at != map.end() && at->second == record.id) map.erase(at);
    };
    if (!record.name.empty()) free(names_, record.name);
    if (!record.key.empty()) free(keys_, record.key);
  }
  ++counters.ended;
  forget_if_spent(record.image);
  box->set_ended();
  key_bell_.ring();
  arm(box);  // an ended one has no timers left
}

// Until it is there, the store counts it as living and keeps its name from others.
Task<void> Service::write_end_later(BoxPtr box) {
  auto self = shared_from_this();
  auto record = box->record();
  for (auto pause = std::chrono::seconds(1);; pause = std::min(pause * 2, std::chrono::seconds(60))) {
    Bell never;
    (void)co_await never.wait_for(never.ticket(), pause);
    auto stored = parts_.store.set_end(record.id, record.end_reason, record.end_detail, record.ended);
    if (stored || stored.error().code == Code::not_found) co_return;
  }
}

ledger::Event Service::event_of(ledger::Kind kind, const BoxPtr& box, std::string data, const Caller& by,
                                const std::string& task) {
  box->tell_birth();
  return plain_event(kind, *box, std::move(data), by, task);
}

ledger::Event Service::plain_event(ledger::Kind kind, Box& box, std::string data, const Caller& by,
                                   const std::string& task) {
  ledger::Event event;
  event.time = now_millis();
  event.project = box.project();
  event.sandbox = box.id();
  event.task = task.empty() ? box.task() : task;
  event.key = by.key;
  event.actor = !by.actor.empty() ? by.actor : by.key;
  if (event.actor.empty()) event.actor = box.of_record([](const auto& r) { return r.actor; });
  event.kind = kind;
  event.data = std::move(data);
  return event;
}

Result<void> Service::append(ledger::Event event) {
  auto written = parts_.ledger.append(std::move(event));
  if (!written) {
    if (unrecorded_++ == 0) log::error("sandbox", "the ledger takes no entries: {}", written.error().message);
    return written;
  }
  // That some are missing is an entry as well, the first one that there is room for.
  if (unrecorded_ == 0) return {};
  const uint64_t missing = unrecorded_.exchange(0);
  ledger::Event lost;
  lost.time = now_millis();
  lost.kind = ledger::Kind::ledger_lost;
  lost.data = json{{"entries", missing}}.dump();
  if (missing > 0 && !parts_.ledger.append(lost)) unrecorded_ += missing;
  return {};
}

void Service::record(ledger::Kind kind, const BoxPtr& box, std::string data, const Caller& by,
                     const std::string& task) {
  record(event_of(kind, box, std::move(data), by, task));
}

void Service::record(ledger::Event event) {
  events_.publish(event);
  (void)append(std::move(event));
}

}  // namespace isola::sandbox
