#include "sandbox/service.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "base/ids.h"
#include "base/log.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

Service::Service(Parts parts) : parts_(std::move(parts)) {}
Service::~Service() = default;

Settings Service::settings() const {
  std::shared_lock lock(mutex_);
  return parts_.settings;
}

void Service::set_settings(Settings settings) {
  std::unique_lock lock(mutex_);
  parts_.settings = std::move(settings);
}

void Service::close_door(std::string why) {
  std::unique_lock lock(mutex_);
  closed_ = std::move(why);
}

size_t Service::living() const {
  std::shared_lock lock(mutex_);
  return boxes_.size();
}

// ---- start and stop -------------------------------------------------------------------------------------------------

Task<Result<void>> Service::start() {
  parts_.launcher->on_ended = [weak = weak_from_this()](const launcher::Ended& ended) {
    if (auto self = weak.lock()) self->heard_end(ended);
  };
  parts_.launcher->on_gate_event = [weak = weak_from_this()](const gate::Event& event, uint32_t dropped) {
    if (auto self = weak.lock()) self->heard_gate(event, dropped);
  };
  ISOLA_CO_TRY(auto there, co_await parts_.launcher->list());
  std::set<std::string> alive;
  for (const auto& summary : there)
    if (!summary.parked) alive.insert(summary.id);
  ISOLA_CO_TRY(auto totals, parts_.ledger.usage({}, ledger::GroupBy::project));
  {
    std::lock_guard lock(used_mutex_);
    for (const auto& total : totals) used_[total.key] = total.used;
  }
  ISOLA_CO_TRY(auto known, parts_.store.living());
  for (const auto& record : known) {
    auto box = std::make_shared<Box>(parts_.next_worker(), record);
    add(box);
    if (!alive.erase(record.id)) {
      finish(box, EndReason::host_restart, "it ended while the server was away", nullptr);
      continue;
    }
    auto taken = co_await take_over(box);
    if (!taken && taken.error().code == Code::not_found) {
      finish(box, EndReason::host_restart, "it ended while the server was away", nullptr);
      continue;
    }
    if (!taken) co_return std::unexpected(taken.error());
    publish(box);
    arm(box);
  }
  // What is left was made and never acknowledged. Ephemeral ones (isola run) belong to whoever holds their connection.
  for (const auto& summary : there) {
    if (!alive.contains(summary.id) || summary.ephemeral) continue;
    log::warn("sandbox", "ending {}: nobody knows it", summary.id);
    (void)co_await parts_.launcher->kill(summary.id);
  }
  parts_.launcher->on_connected = [weak = weak_from_this()] {
    if (auto self = weak.lock()) net::co_spawn(self->parts_.next_worker(), self->reown(), net::detached);
  };
  ready_ = true;
  co_return Result<void>();
}

// After the launcher was lost and found: who of ours is still there?
Task<void> Service::reown() {
  auto self = shared_from_this();
  std::vector<BoxPtr> boxes;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [id, box] : boxes_) boxes.push_back(box);
  }
  for (const auto& box : boxes) {
    auto taken = co_await take_over(box);
    if (!taken && taken.error().code == Code::not_found)
      finish(box, EndReason::boundary_failure, "it ended while the launcher was away", nullptr);
    else if (!taken)
      log::warn("sandbox", "{} could not be taken over: {}", box->id(), taken.error().message);
  }
}

// A sandbox that an earlier server, or an earlier launcher, had: ours again, and in the state that the record says.
Task<Result<void>> Service::take_over(BoxPtr box) {
  Result<void> owned;
  for (int attempt = 0; attempt < 50; ++attempt) {
    owned = co_await parts_.launcher->own(box->id());
    if (owned || owned.error().code != Code::unavailable) break;
    Bell never;  // the launcher is just being restarted
    (void)co_await never.wait_for(never.ticket(), std::chrono::milliseconds(100));
  }
  if (!owned) co_return owned;
  auto record = box->record();
  if (record.state == State::ending) {
    net::co_spawn(
        box->home(),
        [self = shared_from_this(), box, reason = record.end_reason, detail = record.end_detail]() -> Task<void> {
          (void)co_await self->kill(box, reason, detail);
        },
        net::detached);
    co_return Result<void>();
  }
  if (record.state == State::frozen) ISOLA_CO_CHECK(co_await parts_.launcher->freeze(box->id()));
  // What is written down and what is in force are the same again, whoever died between the two.
  if (!record.network.empty()) ISOLA_CO_CHECK(co_await apply_network(box, record.network, false));
  co_return Result<void>();
}

void Service::stop() {
  ready_ = false;
  std::vector<BoxPtr> boxes;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [id, box] : boxes_) boxes.push_back(box);
  }
  for (const auto& box : boxes) {
    (void)parts_.store.touch({{box->id(), box->last_active()}});
    write_usage(box);
  }
}

void Service::add(const BoxPtr& box) {
  auto record = box->record();
  std::unique_lock lock(mutex_);
  boxes_[record.id] = box;
  lock.unlock();
  arm(box);
}

// From here on it is found by its name and its key.
void Service::publish(const BoxPtr& box) {
  auto record = box->record();
  std::unique_lock lock(mutex_);
  if (!boxes_.contains(record.id)) return;  // ended meanwhile
  if (!record.name.empty()) names_[record.project + "\n" + record.name] = record.id;
  if (!record.key.empty()) keys_[record.project + "\n" + record.key] = record.id;
}

// ---- looking --------------------------------------------------------------------------------------------------------

Result<BoxPtr> Service::find(const std::string& project, const std::string& id_or_name) {
  {
    std::shared_lock lock(mutex_);
    std::string id = id_or_name;
    if (auto named = names_.find(project + "\n" + id_or_name); named != names_.end()) id = named->second;
    auto at = boxes_.find(id);
    // Another project's sandbox is answered exactly like none at all.
    if (at != boxes_.end() && at->second->project() == project) return at->second;
  }
  auto record = look(project, id_or_name);
  if (!record) return std::unexpected(record.error());
  std::string what = "sandbox " + record->id + " has ended (" + std::string(to_string(record->end_reason)) + ")";
  if (!record->end_detail.empty()) what += ": " + record->end_detail;
  return fail(Code::not_found, what);
}

Result<BoxPtr> Service::find_any(const std::string& id) {
  std::shared_lock lock(mutex_);
  auto at = boxes_.find(id);
  if (at != boxes_.end()) return at->second;
  return fail(Code::not_found, "there is no sandbox " + log::quoted(id));
}

Result<store::SandboxRecord> Service::look(const std::string& project, const std::string& id_or_name) {
  {
    std::shared_lock lock(mutex_);
    std::string id = id_or_name;
    if (auto named = names_.find(project + "\n" + id_or_name); named != names_.end()) id = named->second;
    auto at = boxes_.find(id);
    if (at != boxes_.end() && at->second->project() == project) return at->second->record();
  }
  if (is_sandbox_id(id_or_name)) {
    auto record = parts_.store.find_sandbox(id_or_name);
    if (record && record->project == project) return record;
    if (!record && record.error().code != Code::not_found) return record;
  }
  return fail(Code::not_found, "there is no sandbox " + log::quoted(id_or_name));
}

Result<store::SandboxPage> Service::list(const store::SandboxFilter& filter, const std::string& cursor, size_t limit) {
  return parts_.store.list_sandboxes(filter, cursor, limit);
}

Task<Result<std::shared_ptr<GuestLink>>> Service::link(BoxPtr box) { return box->link(*parts_.launcher); }

// ---- changing -------------------------------------------------------------------------------------------------------

Task<Result<store::SandboxRecord>> Service::update(BoxPtr box, Update update) {
  auto record = box->record();
  if (update.name && *update.name != record.name) co_return fail(Code::unsupported, "a sandbox keeps its name");
  auto lifetime = record.lifetime;
  if (update.timeout) {
    if (*update.timeout < 0) co_return fail(Code::invalid, "timeout must not be negative");
    Millis deadline = *update.timeout ? now_millis() + *update.timeout : 0;
    bool later = deadline == 0 || (lifetime.deadline != 0 && deadline > lifetime.deadline);
    if (!update.only_extend || later) lifetime.deadline = deadline;
  }
  if (update.idle_limit) {
    if (*update.idle_limit < 0) co_return fail(Code::invalid, "idle_timeout must not be negative");
    lifetime.idle_limit = *update.idle_limit;
  }
  if (lifetime != record.lifetime) {
    ISOLA_CO_CHECK(parts_.store.set_lifetime(box->id(), lifetime));
    box->change([&](auto& r) { r.lifetime = lifetime; });
    arm(box);
  }
  if (update.metadata) {
    size_t bytes = 0;
    for (const auto& [key, value] : *update.metadata) bytes += key.size() + value.size();
    if (bytes > kMaxMetadata) co_return fail(Code::invalid, "metadata is too large");
    ISOLA_CO_CHECK(parts_.store.set_metadata(box->id(), *update.metadata));
    box->change([&](auto& r) { r.metadata = *update.metadata; });
  }
  this->record(ledger::Kind::sandbox_updated, box, json{{"deadline", lifetime.deadline}}.dump());
  co_return box->record();
}

Task<Result<void>> Service::freeze(BoxPtr box) {
  if (box->state() != State::running) co_return fail(Code::invalid, "only a running sandbox can be frozen");
  ISOLA_CO_CHECK(co_await parts_.launcher->freeze(box->id()));
  ISOLA_CO_CHECK(parts_.store.set_state(box->id(), State::frozen));
  box->change([](auto& r) { r.state = State::frozen; });
  record(ledger::Kind::sandbox_updated, box, R"({"state":"frozen"})");
  co_return Result<void>();
}

Task<Result<void>> Service::thaw(BoxPtr box) {
  if (box->state() == State::running) co_return Result<void>();
  if (box->state() != State::frozen) co_return fail(Code::invalid, "only a frozen sandbox can be thawed");
  ISOLA_CO_CHECK(co_await parts_.launcher->thaw(box->id()));
  ISOLA_CO_CHECK(parts_.store.set_state(box->id(), State::running));
  box->change([](auto& r) { r.state = State::running; });
  record(ledger::Kind::sandbox_updated, box, R"({"state":"running"})");
  co_return Result<void>();
}

// ---- ending ---------------------------------------------------------------------------------------------------------

Task<Result<void>> Service::kill(BoxPtr box, EndReason reason, std::string detail) {
  if (box->state() == State::ended) co_return Result<void>();
  bool first = false;
  box->change([&](auto& r) {
    first = r.state != State::ending && r.state != State::ended;
    if (!first) return;
    r.state = State::ending;
    r.end_reason = reason;
    r.end_detail = detail;
  });
  // On disk first: whatever happens to us now, it is known that this one is to end, and why.
  if (first) ISOLA_CO_CHECK(parts_.store.set_state(box->id(), State::ending));
  for (int attempt = 0;; ++attempt) {
    auto ended = co_await parts_.launcher->kill(box->id());
    if (ended) {
      finish(box, reason, detail, &ended->usage);
      co_return Result<void>();
    }
    if (ended.error().code == Code::not_found) {
      finish(box, reason, detail, nullptr);
      co_return Result<void>();
    }
    if (ended.error().code != Code::unavailable || attempt >= 50) co_return std::unexpected(ended.error());
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
  if (record.state == State::ending) return;  // kill() above finishes it, with its own reason
  finish(box, ended.reason, ended.reason == EndReason::oom ? "the memory limit was reached" : "", &ended.usage);
}

void Service::finish(const BoxPtr& box, EndReason reason, const std::string& detail,
                     const launcher::StatsReply* usage) {
  bool first = false;
  Millis now = now_millis();
  box->change([&](auto& r) {
    first = r.state != State::ended;
    r.state = State::ended;
    r.end_reason = reason;
    r.end_detail = detail;
    r.ended = now;
  });
  if (!first) return;
  if (auto stored = parts_.store.set_end(box->id(), reason, detail, now); !stored)
    log::error("sandbox", "cannot write down the end of {}: {}", box->id(), stored.error().message);
  if (usage) charge(box, *usage);
  write_usage(box);
  box->drop_link();
  auto record = box->record();
  {
    std::unique_lock lock(mutex_);
    boxes_.erase(record.id);
    auto free = [&](auto& map, const std::string& name) {
      auto at = map.find(record.project + "\n" + name);
      if (at != map.end() && at->second == record.id) map.erase(at);
    };
    if (!record.name.empty()) free(names_, record.name);
    if (!record.key.empty()) free(keys_, record.key);
  }
  key_bell_.ring();
  ++counters.ended;
  json data = {{"reason", to_string(reason)}, {"lived_ms", now - record.created}};
  if (!detail.empty()) data["detail"] = detail;
  if (usage) data["memory_peak_bytes"] = usage->memory_peak_bytes, data["oom_kills"] = usage->oom_kills;
  this->record(ledger::Kind::sandbox_ended, box, data.dump(-1, ' ', false, json::error_handler_t::replace));
  arm(box);  // an ended one has no timers left
}

void Service::record(ledger::Kind kind, const BoxPtr& box, std::string data, const std::string& task,
                     const std::string& actor) {
  auto record = box->record();
  ledger::Event event;
  event.time = now_millis();
  event.project = record.project;
  event.sandbox = record.id;
  event.task = task.empty() ? record.task : task;
  event.actor = actor.empty() ? record.actor : actor;
  event.kind = kind;
  event.data = std::move(data);
  events_.publish(event);
  if (auto written = parts_.ledger.append(std::move(event)); !written)
    log::error("sandbox", "the ledger takes no entries: {}", written.error().message);
}

}  // namespace isola::sandbox
