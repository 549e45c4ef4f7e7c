// Creating: check, reserve the name, launch, write down, prepare. Whatever fails takes back what was done.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/image_records.h"
#include "sandbox/launching.h"
#include "sandbox/quiet_run.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

Result<void> check_labels(const store::Labels& labels, const char* what, size_t max_bytes) {
  size_t bytes = 0;
  for (const auto& [key, value] : labels) {
    bytes += key.size() + value.size();
    if (key.empty() || key.find('\0') != std::string::npos || value.find('\0') != std::string::npos)
      return fail(Code::invalid, std::string(what) + ": a key is empty or holds a NUL byte");
  }
  if (bytes > max_bytes)
    return fail(Code::invalid, std::string(what) + " is larger than " + std::to_string(max_bytes) + " bytes");
  return {};
}

constexpr auto kLeaving = std::chrono::seconds(5);
constexpr auto kOldKeeper = std::chrono::seconds(30);  // of a key, to be gone
constexpr auto kTellWithin = std::chrono::milliseconds(3);
constexpr size_t kUneven = 16;  // sandboxes that a worker may have more than another

std::string slot(const std::string& project, const std::string& name) { return project + "\n" + name; }

}  // namespace

bool is_plain_name(const std::string& name) {
  if (name.empty() || name.size() > 63) return false;
  for (char c : name)
    if (!(std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.')) return false;
  return std::isalnum(static_cast<unsigned char>(name[0])) != 0;
}

// A name or key that is being taken. Given back unless kept.
struct Service::Reservation {
  Service& service;
  std::string name, key;
  std::string mark;  // what stands there until the sandbox does
  bool kept = false;
  ~Reservation() {
    if (kept) return;
    {
      std::unique_lock lock(service.mutex_);
      // Only while it is ours: once the sandbox stood there, its own end frees the name.
      auto free = [this](auto& map, const std::string& what) {
        auto at = map.find(what);
        if (at != map.end() && at->second == mark) map.erase(at);
      };
      if (!name.empty()) free(service.names_, name);
      if (!key.empty()) free(service.keys_, key);
    }
    service.key_bell_.ring();
  }
};

Result<void> check_metadata(const store::Labels& metadata) { return check_labels(metadata, "metadata", kMaxMetadata); }

Result<void> Service::check(const CreateRequest& request) const {
  if (!request.name.empty() && (!is_plain_name(request.name) || is_sandbox_id(request.name)))
    return fail(Code::invalid,
                "name: use 1 to 63 of letters, digits, '-', '_' and '.', starting with a letter or digit, and nothing "
                "that looks like an id");
  if (request.limits.memory > store::kLargestLimit || request.limits.disk > store::kLargestLimit)
    return fail(Code::invalid, "memory and disk: at most 1 PiB each");
  if (request.task.size() > kMaxWord || request.actor.size() > kMaxWord)
    return fail(Code::invalid, "task and actor: at most 256 bytes");
  if (request.probe.size() > kMaxLine) return fail(Code::invalid, "probe: is too long");
  size_t hooks_size = 0;
  for (const auto* hooks : {&request.on_create, &request.on_resume}) {
    for (const auto& line : *hooks) {
      if (line.size() > kMaxLine) return fail(Code::invalid, "hooks: a command is too long");
      hooks_size += line.size();
    }
  }
  if (hooks_size > kMaxHooks) return fail(Code::invalid, "hooks: on_create and on_resume have 128 KiB together");
  if (request.key.size() > 256) return fail(Code::invalid, "key: at most 256 characters");
  if (request.timeout && *request.timeout < 0) return fail(Code::invalid, "timeout must not be negative");
  if (request.idle_limit < 0) return fail(Code::invalid, "idle_timeout must not be negative");
  if (request.delete_after < 0) return fail(Code::invalid, "delete_after must not be negative");
  if (request.archive_after < 0) return fail(Code::invalid, "archive_after must not be negative");
  ISOLA_CHECK(check_git(request.git));
  if (request.freeze_after < 0) return fail(Code::invalid, "freeze_after must not be negative");
  if ((!request.snapshot.empty() || !request.step.empty()) && !request.template_name.empty())
    return fail(Code::invalid, "a sandbox is made from a template or from a snapshot, not from both");
  if (request.on_create.size() + request.on_resume.size() > 32) return fail(Code::invalid, "hooks: at most 32");
  ISOLA_CHECK(check_metadata(request.metadata));
  ISOLA_CHECK(check_labels(request.env, "env", 128 << 10));
  for (const auto& [key, value] : request.env)
    if (key.find('=') != std::string::npos) return fail(Code::invalid, "env: a name must not hold '='");
  return {};
}

Result<store::ProjectLimits> Service::admit(const CreateRequest& request) {
  {
    std::shared_lock lock(mutex_);
    if (!closed_.empty()) return fail(Code::unavailable, "no new sandboxes are made here: " + closed_);
  }
  if (auto good = parts_.ledger.health(); !good)
    return std::unexpected(good.error().in("the ledger cannot take an entry"));
  ISOLA_TRY(auto project, parts_.store.find_project(request.project));
  if (auto spent = accounts_.refuses(request.project, request.task)) return fail(Code::exhausted, spent->text());
  const auto& limits = project.limits;
  if (limits.creates_per_second > 0) {
    std::unique_lock lock(mutex_);
    auto& rate = rates_[request.project];
    auto now = std::chrono::steady_clock::now();
    double burst = std::max(1.0, limits.creates_per_second);
    double since = std::chrono::duration<double>(now - rate.at).count();
    rate.tokens = std::min(burst, rate.tokens + since * limits.creates_per_second);
    rate.at = now;
    if (rate.tokens < 1)
      return fail(Code::exhausted,
                  fmt::format("this project may create {} sandboxes a second", limits.creates_per_second));
    rate.tokens -= 1;
  }
  return limits;
}

BoundaryKind Service::least_boundary(const std::string& project) {
  auto record = parts_.store.find_project(project);
  return record ? record->limits.boundary : BoundaryKind::microvm;
}

int Service::seconds_until_create(const std::string& project) {
  auto record = parts_.store.find_project(project);
  double rate = record ? record->limits.creates_per_second : 0;
  std::shared_lock lock(mutex_);
  auto at = rates_.find(project);
  if (rate <= 0 || at == rates_.end()) return 0;
  std::chrono::duration<double> since = std::chrono::steady_clock::now() - at->second.at;
  double missing = 1 - (at->second.tokens + since.count() * rate);
  return missing <= 0 ? 0 : static_cast<int>(std::min(std::ceil(missing / rate), 3600.0));
}

Result<void> Service::has_room(const CreateRequest& request, const store::ProjectLimits& limits) {
  if (limits == store::ProjectLimits{.creates_per_second = limits.creates_per_second}) return {};
  ISOLA_TRY(auto use, parts_.store.project_use(request.project));
  auto over = [](const char* what, auto limit) {
    return fail(Code::exhausted,
                fmt::format("this project's limit of {} {} is reached; end a sandbox first", limit, what));
  };
  if (limits.live_sandboxes && use.live_sandboxes + 1 > limits.live_sandboxes)
    return over("live sandboxes", limits.live_sandboxes);
  if (limits.cpus > 0 && use.cpus + request.limits.cpus > limits.cpus) return over("CPUs", limits.cpus);
  if (limits.memory && use.memory + request.limits.memory > limits.memory)
    return over("bytes of memory", limits.memory);
  if (limits.disk && use.disk + request.limits.disk > limits.disk) return over("bytes of disk", limits.disk);
  return {};
}

// A place that somebody is just leaving is as good as free.
Task<Result<void>> Service::wait_for_room(const CreateRequest& request, const store::ProjectLimits& limits) {
  auto until = std::chrono::steady_clock::now() + kLeaving;
  for (;;) {
    uint64_t ticket = key_bell_.ticket();
    auto room = has_room(request, limits);
    if (room || room.error().code != Code::exhausted) co_return room;
    {
      std::shared_lock lock(mutex_);
      if (!ending_.contains(request.project)) co_return room;
    }
    auto left = until - std::chrono::steady_clock::now();
    if (left.count() <= 0) co_return room;
    (void)co_await key_bell_.wait_for(ticket, left);
  }
}

// With whoever made it, so that what is asked next stays on one core; unless that one has more than its share.
net::io_context& Service::home_near(net::io_context* caller) {
  net::io_context& turn = parts_.next_worker();
  std::shared_lock lock(mutex_);
  auto count = [&](net::io_context* worker) {
    auto at = homes_.find(worker);
    return at == homes_.end() ? 0 : at->second;
  };
  return caller && count(caller) <= count(&turn) + kUneven ? *caller : turn;
}

Task<Result<Created>> Service::create(CreateRequest request) {
  auto begun = std::chrono::steady_clock::now();
  ISOLA_CO_CHECK(check(request));
  Reservation reserved{*this, {}, {}, {}};
  std::string key = request.key.empty() ? "" : slot(request.project, request.key);
  std::string name = request.name.empty() ? "" : slot(request.project, request.name);
  if (!key.empty() || !name.empty()) reserved.mark = "?" + new_command_id();
  std::optional<std::chrono::steady_clock::time_point> until;
  for (;;) {
    uint64_t ticket = key_bell_.ticket();
    std::string existing;
    bool wait = false;
    {
      std::unique_lock lock(mutex_);
      if (!key.empty() && keys_.contains(key)) {
        existing = keys_[key];
        wait = existing.starts_with('?');
      } else if (!name.empty() && names_.contains(name)) {
        co_return fail(Code::exists, "the name '" + request.name + "' is taken by another sandbox");
      } else {
        if (!key.empty()) keys_[reserved.key = key] = reserved.mark;
        if (!name.empty()) names_[reserved.name = name] = reserved.mark;
        break;
      }
    }
    if (wait) {  // somebody is creating it just now
      co_await key_bell_.wait(ticket);
      continue;
    }
    auto box = find(request.project, existing);
    // One whose end has begun is nobody's any more: its key is free when it is over.
    bool ending = box && ((*box)->state() == State::ending || (*box)->state() == State::ended);
    if (box && !ending) {
      Caller by(request.by, request.actor);
      if ((*box)->state() == State::frozen) ISOLA_CO_CHECK(co_await thaw(*box, by));
      if (store::is_asleep((*box)->state())) {
        ResumeRequest usual;
        usual.by = by;
        ISOLA_CO_TRY(Latency latency, co_await resume(*box, usual));
        reserved.kept = true;
        co_return Created{*box, true, latency};
      }
      auto use = (*box)->use();
      reserved.kept = true;
      co_return Created{*box, true, {}};
    }
    // It is ending, or ended between the two looks: the bell rings when its key is free. That may be never, where the
    // launcher is away.
    if (!until) until = begun + kOldKeeper;
    if (std::chrono::steady_clock::now() > *until)
      co_return fail(Code::unavailable, "the sandbox that has this key is ending, and does not come to its end");
    (void)co_await key_bell_.wait_for(ticket, std::chrono::milliseconds(100));
  }
  auto created = co_await launch(std::move(request));
  if (!created) {
    ++counters.create_failures;
    co_return created;
  }
  reserved.kept = true;
  key_bell_.ring();
  ++counters.created;
  counters.create_nanos += static_cast<uint64_t>((std::chrono::steady_clock::now() - begun).count());
  counters.add_create(created->latency);
  co_return created;
}

Task<Result<Created>> Service::launch(CreateRequest request) {
  Settings settings = this->settings();
  Source source;
  std::optional<store::ImageRecord> snapshot;
  if (!request.snapshot.empty() || !request.step.empty()) {
    if (request.step.empty()) {
      ISOLA_CO_TRY(snapshot, find_snapshot(request.project, request.snapshot));
    } else {
      ISOLA_CO_TRY(snapshot, parts_.store.find_image(request.step));
      if (snapshot->project != request.project) co_return fail(Code::not_found, "there is no image " + request.step);
    }
    request.template_name = snapshot->template_name;
    for (const auto& [name, value] : snapshot->env) request.env.emplace(name, value);
  } else {
    if (request.template_name.empty()) request.template_name = settings.default_template;
    ISOLA_CO_TRY(source, source_of(request.project, request.template_name, request.of_machine));
    for (const auto& [name, value] : source.env) request.env.emplace(name, value);
    ISOLA_CO_CHECK(check(request));  // with all of its variables
    if (request.usual_limits && source.cpus > 0) request.limits.cpus = source.cpus;
    if (request.usual_limits && source.memory_limit > 0) request.limits.memory = source.memory_limit;
    if (request.usual_disk) request.limits.disk = std::max(request.limits.disk, source.disk);
  }
  const std::string digest = source.digest;
  store::SandboxRecord record;
  record.user = snapshot ? snapshot->user : source.user;
  record.cwd = snapshot ? snapshot->cwd : source.cwd;
  // What is not said of either kind is the snapshot's.
  auto uses = request.volumes.value_or(std::vector<store::VolumeUse>());
  if (request.buckets) uses.insert(uses.end(), request.buckets->begin(), request.buckets->end());
  if (snapshot)
    for (const auto& use : snapshot->volumes)
      if (use.bucket ? !request.buckets : !request.volumes) uses.push_back(use);
  if (!request.may_mount_buckets && std::ranges::any_of(uses, [](const auto& use) { return use.bucket.has_value(); }))
    co_return fail(Code::denied,
                   std::string("buckets: they are mounted with a secret of the project: for keys of scope admin") +
                       (request.buckets ? "" : "; with \"buckets\": [] the snapshot's files come without them"));
  ISOLA_CO_TRY(record.volumes, find_volumes(request.project, std::move(uses), request.filling));
  ISOLA_CO_TRY(auto buckets, buckets_of(request.project, record.volumes));
  ISOLA_CO_TRY(record.network, policy_text(request.network));
  if (request.network == "package-registries")
    request.env.insert(parts_.registries.environment.begin(), parts_.registries.environment.end());
  else
    ISOLA_CO_CHECK(may_ask_for(request.project, record.network));
  record.project = request.project;
  record.limits = request.limits;
  // Looked at before anything is made, so that a flood of refused creates costs nothing; the insert decides for good.
  ISOLA_CO_TRY(auto limits, admit(request));
  ISOLA_CO_CHECK(co_await wait_for_room(request, limits));
  launcher::LaunchRequest ask{.digest = digest,
                              .limits = request.limits,
                              .boundary = {.wish = request.boundary, .at_least = limits.boundary},
                              .ephemeral = false,
                              .cold = request.cold,
                              .allow_unquotaed = settings.allow_unquotaed_disk,
                              .volumes = mounts_of(record.volumes),
                              .buckets = std::move(buckets)};
  const std::string image = snapshot ? snapshot->id : source.image;
  if (!image.empty()) {
    ask.digest.clear();
    ask.image = image;
    ask.files_only = request.files_only;
    ask.forked = true;
    (void)parts_.store.touch_image(image, now_millis());
    // What was in its memory is in this one's.
    if (!request.files_only) {
      auto made = snapshot ? Result<store::ImageRecord>(*snapshot) : parts_.store.find_image(image);
      if (!made && made.error().code != Code::not_found) co_return std::unexpected(made.error());
      record.exposed = made && made->memory && made->exposed;
    }
  }
  std::optional<Launching> under_way(std::in_place, *this);
  // What is kept warm is a jail's memory.
  const bool a_jail_will_do = limits.boundary == BoundaryKind::jail &&
                              (request.boundary == BoundaryWish::automatic || request.boundary == BoundaryWish::jail);
  std::string warm = image.empty() && a_jail_will_do ? warm_for(request, digest, !record.volumes.empty()) : "";
  Result<Launched> launched = fail(Code::internal, "not launched");
  if (!warm.empty()) {
    auto restored = ask;
    restored.digest.clear();
    restored.image = warm;
    restored.forked = true;
    launched = co_await parts_.launcher->launch(std::move(restored));
    if (launched) warm_served(digest);
  }
  if (!launched) {
    Error why = launched.error();
    launched = co_await parts_.launcher->launch(std::move(ask));
    // Where a plain one cannot be had either, it is not the image's fault.
    if (launched && !warm.empty()) co_await warm_failed(digest, warm, why);
    warm.clear();
  }
  if (!launched) co_return std::unexpected(std::move(launched).error());

  Millis now = now_millis();
  record.id = launched->reply.id;
  record.name = request.name;
  record.key = request.key;
  record.task = request.task;
  record.actor = request.actor;
  record.template_name = request.template_name;
  record.digest = snapshot ? snapshot->digest : digest;
  record.boundary = launched->reply.kind;
  record.engine = launched->reply.engine;
  record.birth = launched->reply.birth;
  // Until all that was asked for is in place. A server that dies before leaves something that nobody must take up.
  bool bare = record.network.empty() && request.network != "package-registries" && request.env.empty() &&
              request.on_create.empty() && request.probe.empty() && request.git.url.empty();
  record.state = bare ? State::running : State::creating;
  record.created = record.last_active = now;
  Millis timeout = request.timeout.value_or(settings.default_timeout);
  record.lifetime = {.deadline = timeout ? now + timeout : 0,
                     .idle_limit = request.idle_limit,
                     .at_end = request.at_end,
                     .auto_resume = request.auto_resume,
                     .timeout = timeout,
                     .delete_after = request.delete_after,
                     .freeze_after = request.freeze_after,
                     .archive_after = request.archive_after};
  record.budget = request.budget;
  record.metadata = request.metadata;
  record.env = request.env;
  record.on_create = request.on_create;
  record.on_resume = request.on_resume;
  record.probe = request.probe;
  if (!request.public_ports) record.traffic_token = new_token();
  record.secure = !request.public_ports;
  record.one_shot = request.one_shot;
  record.made_by = request.by;
  record.keep_grants = request.keep_grants || !request.network_grants.empty();
  record.granted = request.grants && (!snapshot || request.keep_grants);

  net::any_io_executor executor = co_await net::this_coro::executor;
  auto* caller = executor.target<net::io_context::executor_type>();
  auto box = new_box(home_near(caller ? &caller->context() : nullptr), record);
  box->set_patience(settings.patience);
  box->set_link(GuestLink::start(box->home(), std::move(launched->link), settings.patience, box->screening()));
  // Not waited for: the store has it, and a server that is killed before the ledger's file does makes good for it at
  // its next start (note_birth).
  auto tell = [weak = weak_from_this(), box = box.get(), latency = launched->reply.latency, warm,
               snapshot = snapshot ? snapshot->id : std::string(), by = Caller(request.by, request.actor)] {
    if (auto self = weak.lock()) self->record_birth(*box, latency, snapshot, warm, by);
  };
  box->tell_later(std::move(tell));
  // What takes but a moment is written down once, as running, while the gate takes its policy. Whoever dies before that
  // leaves a sandbox that the store does not know, and the next start clears it away; whoever dies between the two
  // leaves one that gets its variables and its policy when it is taken over. By a name or a key nobody may find such a
  // one: those wait.
  const bool soon = !bare && is_ready_soon(request, record);
  const bool together = soon && request.name.empty() && request.key.empty();
  std::optional<Result<void>> inserted;
  const Meanwhile insert = [&] {
    if (soon && box->state() != State::creating) {
      inserted = fail(Code::unavailable, "the sandbox ended while it was being made");
      return;
    }
    if (soon) record.state = State::running;
    inserted = parts_.store.insert_sandbox(record);
  };
  Result<void> ready;
  if (soon) {
    add(box);  // it may end before it is ready
    under_way.reset();
    ready = co_await prepare(box, request, false, together ? &insert : nullptr);
    if (ready && !inserted) insert();
    if (ready && *inserted && !box->change_from(State::creating, [](auto& r) { r.state = State::running; }))
      ready = fail(Code::unavailable, "the sandbox ended while it was being made");
  } else {
    insert();
  }
  if (!ready || !*inserted) {
    Error why = ready ? inserted->error() : ready.error();
    if (inserted && *inserted) {
      // One that ended by itself before the store had it is written down by whoever saw to its end (write_end_later).
      (void)co_await kill(box, EndReason::killed, own_words(why.message));
      co_return std::unexpected(why);
    }
    if (soon) forget(box);
    (void)co_await parts_.launcher->kill(record.id);
    co_return std::unexpected(why);
  }
  if (!soon) add(box);  // its name and key follow when it is ready for others
  // It is among ours: its hooks may take long, and the sweep waits for nobody who is making ready.
  under_way.reset();
  if (!bare && !soon) box->tell_birth();  // it may take long until all is in place
  note_buckets(box, Caller(request.by, request.actor));
  Result<void> prepared;
  if (!soon) prepared = co_await prepare(box, request, true);
  if (prepared && !bare && !soon) prepared = set_running(box);
  if (!prepared) {
    Error why = prepared.error();
    (void)co_await kill(box, EndReason::killed, own_words(why.message));
    co_return std::unexpected(why);
  }
  tell_soon(box);
  // Else its name and its key would be taken by nobody, for ever.
  if (!publish(box)) co_return fail(Code::unavailable, "the sandbox ended while it was being made");
  // With volumes it could not have come from the pool.
  if (!snapshot) {
    const std::string& pool = !warm.empty() ? warm : !image.empty() ? image : digest;
    note_demand(pool, record.birth, request.cold || !record.volumes.empty());
  }
  co_return Created{box, false, launched->reply.latency};
}

// Variables and a policy are in place when the guest and the gate have answered once. Whatever has to be written down
// beside the sandbox, or may run for long, needs the sandbox in the store first.
bool Service::is_ready_soon(const CreateRequest& request, const store::SandboxRecord& record) {
  return request.network != "package-registries" && request.on_create.empty() && request.probe.empty() &&
         request.git.url.empty() && request.network_grants.empty() && record.volumes.empty() &&
         !needs_certificate(record);
}

// One that the store never had, and of which nobody was told.
void Service::forget(const BoxPtr& box) {
  if (!box->claim_end()) return;  // it went by itself, and is being seen to
  {
    std::unique_lock lock(mutex_);
    if (boxes_.erase(box->id())) --homes_[&box->home()];
  }
  {
    std::lock_guard lock(grants_mutex_);
    grants_due_.erase(box->id());
  }
  box->drop_link();
  box->set_ended();
  arm(box);
}

void Service::record_birth(Box& box, const Latency& latency, const std::string& snapshot, const std::string& warm,
                           const Caller& by) {
  json data = birth_data(box.record());
  data["latency_us"] = latency_data(latency);
  if (!snapshot.empty()) data["snapshot"] = snapshot;
  if (!warm.empty()) data["image"] = warm;
  record(plain_event(ledger::Kind::sandbox_created, box, data.dump(-1, ' ', false, json::error_handler_t::replace), by,
                     {}));
}

// Not as soon as its maker has the answer: the next request comes then. What is told of it before, such as its first
// command, brings this along.
void Service::tell_soon(const BoxPtr& box) {
  {
    std::lock_guard lock(births_.mutex);
    births_.untold.push_back(box);
    if (std::exchange(births_.soon, true)) return;
  }
  auto timer = std::make_shared<net::steady_timer>(box->home(), kTellWithin);
  timer->async_wait([weak = weak_from_this(), timer](boost::system::error_code) {
    if (auto self = weak.lock()) self->tell_births();
  });
}

// Under the lock: who finds nothing to tell may rely on it that all of it is told.
void Service::tell_births() {
  std::lock_guard lock(births_.mutex);
  births_.soon = false;
  for (const auto& box : births_.untold) box->tell_birth();
  births_.untold.clear();
}

// What the launcher made is ours from here on; what the store refuses ends again.
Task<Result<BoxPtr>> Service::take_in(store::SandboxRecord record, boundary::Link link) {
  auto box = new_box(home_near(nullptr), record);
  auto patience = settings().patience;
  box->set_patience(patience);
  box->set_link(GuestLink::start(box->home(), std::move(link), patience, box->screening()));
  auto inserted = parts_.store.insert_sandbox(record);
  if (!inserted) {
    Error why = inserted.error();
    (void)co_await parts_.launcher->kill(record.id);
    co_return std::unexpected(why);
  }
  add(box);
  co_return box;
}

// What every command inside gets to see. `the_one`: who shut it asks.
Task<Result<void>> Service::configure(BoxPtr box, store::Labels env, bool the_one) {
  if (env.empty()) co_return Result<void>();
  ISOLA_CO_TRY(auto link, co_await box->link(*parts_.launcher, the_one ? Box::Asks::the_one : Box::Asks::anybody));
  guest::Configure configure;
  for (const auto& [key, value] : env) configure.env.push_back(key + "=" + value);
  auto done = co_await link->call(guest::Op::configure, guest::encode(configure));
  if (!done) co_return std::unexpected(std::move(done).error());
  co_return Result<void>();
}

Result<void> Service::set_running(const BoxPtr& box) {
  if (box->state() != State::creating) return fail(Code::unavailable, "the sandbox ended while it was being made");
  ISOLA_CHECK(parts_.store.set_state(box->id(), State::running));
  if (box->change_from(State::creating, [](auto& r) { r.state = State::running; })) return {};
  return fail(Code::unavailable, "the sandbox ended while it was being made");
}

Task<Result<void>> Service::prepare(BoxPtr box, const CreateRequest& request, bool certificate,
                                    const Meanwhile* meanwhile) {
  ChannelPtr configured;  // under way while the gate is asked
  if (!request.env.empty()) {
    ISOLA_CO_TRY(auto link, co_await this->link(box));
    guest::Configure configure;
    for (const auto& [key, value] : request.env) configure.env.push_back(key + "=" + value);
    configured = link->open(guest::Op::configure, guest::encode(configure));
  }
  // Before anything runs: whatever does, runs under it.
  {
    Box::Turn turn = co_await box->turn();
    if (request.network_grants.empty()) {
      ISOLA_CO_CHECK(co_await renew_network(box, true, meanwhile));
    } else {
      Caller by(request.by, request.actor);
      ISOLA_CO_TRY(auto grants, co_await write_network_grants(box, request.network_grants, by));
      ISOLA_CO_CHECK(co_await apply_with_grants(box, box->record().network, false, grants));
    }
  }
  if (configured) {
    auto done = co_await configured->end();
    if (!done) co_return std::unexpected(std::move(done).error());
  }
  if (request.network == "package-registries") ISOLA_CO_CHECK(co_await place_files(box, parts_.registries.files));
  if (certificate) co_await place_certificate(box);
  if (!request.git.url.empty()) ISOLA_CO_CHECK(co_await check_out(box, request.git));
  if (!request.on_create.empty()) ISOLA_CO_CHECK(co_await run_hooks(box, request.on_create, "on_create"));
  if (!request.probe.empty()) ISOLA_CO_CHECK(co_await wait_ready(box, request.probe));
  if (!request.probe.empty() || !request.on_create.empty()) record(ledger::Kind::sandbox_ready, box, "{}");
  co_return Result<void>();
}

namespace {

Task<Result<QuietEnd>> run_line(Service& service, BoxPtr box, std::string line, std::chrono::milliseconds timeout) {
  CommandSpec spec;
  spec.shell = std::move(line);
  spec.timeout = timeout;
  spec.counted = false;
  co_return co_await run_quietly(service, std::move(box), std::move(spec));
}

}  // namespace

Task<Result<void>> Service::run_hooks(BoxPtr box, std::vector<std::string> hooks, std::string when) {
  for (const auto& line : hooks) {
    ISOLA_CO_TRY(QuietEnd end, co_await run_line(*this, box, line, std::chrono::minutes(10)));
    if (end.exit.code != 0)
      co_return fail(Code::invalid, when + ": the command " + log::quoted(line) + " ended with " +
                                        (end.exit.signal ? "signal " + std::to_string(end.exit.signal)
                                                         : std::to_string(end.exit.code)) +
                                        and_said(end));
  }
  co_return Result<void>();
}

Task<Result<void>> Service::wait_ready(BoxPtr box, std::string probe) {
  auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  net::steady_timer pause(co_await net::this_coro::executor);
  for (auto wait = std::chrono::milliseconds(20);; wait = std::min(wait * 2, std::chrono::milliseconds(1000))) {
    ISOLA_CO_TRY(QuietEnd end, co_await run_line(*this, box, probe, std::chrono::seconds(10)));
    if (end.exit.code == 0) co_return Result<void>();
    if (std::chrono::steady_clock::now() > until)
      co_return fail(Code::timeout, "probe: the sandbox was not ready within a minute" + and_said(end));
    pause.expires_after(wait);
    co_await pause.async_wait(net::use_awaitable);
  }
}

}  // namespace isola::sandbox
