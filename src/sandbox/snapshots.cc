// Snapshots and forks: an image of a sandbox that goes on, kept by name, or made into other sandboxes at once.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/ids.h"
#include "base/log.h"
#include "sandbox/image_records.h"
#include "sandbox/launching.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

constexpr Millis kKeepSteps = Millis{7} * 24 * 3600 * 1000;  // of a build that nothing is made of

// A name, and perhaps a tag: "trained", "trained:v2".
bool is_snapshot_name(const std::string& name) {
  auto colon = name.find(':');
  if (colon != name.npos && !is_plain_name(name.substr(colon + 1))) return false;
  std::string plain = name.substr(0, colon);
  return is_plain_name(plain) && !is_image_id(plain);
}

Result<void> must_run(const BoxPtr& box) {
  State state = box->state();
  if (state == State::running) return {};
  if (state == State::ended || state == State::ending)
    return fail(Code::not_found, "sandbox " + box->id() + " has ended");
  return conflict("sandbox " + box->id() + " is " + std::string(to_string(state)) + ": it must be running for that");
}

}  // namespace

Task<Result<store::ImageRecord>> Service::snapshot(BoxPtr box, SnapshotRequest request) {
  auto self = shared_from_this();
  const bool named = request.kind == store::ImageKind::snapshot && !request.name.empty();
  if (named && !is_snapshot_name(request.name))
    co_return fail(Code::invalid,
                   "name: use 1 to 63 of letters, digits, '-', '_' and '.', nothing like an id; a tag behind a ':'");
  std::string before;
  if (named) {
    auto taken = find_snapshot(box->project(), request.name);
    if (taken && !request.replace) co_return fail(Code::exists, "there is a snapshot '" + request.name + "' already");
    if (taken) before = taken->id;
    std::string plain = request.name.substr(0, request.name.find(':'));
    // Said before anything is made; the store decides.
    if (parts_.store.find_template(box->project(), plain))
      co_return fail(Code::exists, "the name '" + plain + "' is taken by a template");
  }
  if (request.expires_after < 0) co_return fail(Code::invalid, "expires_after must not be negative");
  ISOLA_CO_CHECK(co_await wake_for(box));
  Box::Turn turn = co_await box->turn();
  ISOLA_CO_CHECK(must_run(box));
  if (request.memory && box->record().exposed && !request.allow_exposed) co_return no_image_of_exposed(box->id());
  auto stats = co_await parts_.launcher->stats(box->id());
  if (stats) ISOLA_CO_CHECK(room_to_keep(box, stats->disk_bytes + (request.memory ? stats->memory_bytes : 0)));
  Launching under_way(*this);
  launcher::CheckpointRequest ask{.id = box->id(), .memory = request.memory, .keep_running = true};
  ISOLA_CO_TRY(auto saved, co_await save(box, std::move(ask)));
  auto image = image_record(box->record(), saved, request.memory, request.kind);
  image.name = request.name;
  image.expires_after = request.expires_after;
  auto stored = request.kind == store::ImageKind::snapshot ? parts_.store.insert_snapshot(image, before)
                                                           : parts_.store.insert_build_image(image);
  if (!stored) {
    Error why = stored.error();
    (void)co_await parts_.launcher->drop_image(image.id);
    co_return std::unexpected(why);
  }
  json data = {{"snapshot", image.id},
               {"name", image.name},
               {"memory_bytes", image.memory_bytes},
               {"layer_bytes", image.layer_bytes},
               {"latency_us", latency_data(saved.latency)}};
  if (!before.empty()) {
    data["instead_of"] = before;
    co_await drop_spent(before);
  }
  record(ledger::Kind::sandbox_updated, box, data.dump(), request.by);
  co_return image;
}

Result<store::ImageRecord> Service::find_snapshot(const std::string& project, const std::string& id_or_name) {
  if (id_or_name.empty()) return fail(Code::not_found, "nothing has no name");  // asked by every create
  return parts_.store.find_snapshot(project, id_or_name);
}

Task<Result<void>> Service::remove_snapshot(std::string project, std::string id_or_name) {
  auto self = shared_from_this();
  ISOLA_CO_TRY(auto image, find_snapshot(project, id_or_name));
  ISOLA_CO_CHECK(parts_.store.spend_snapshot(image.id));
  co_await drop_spent(image.id);
  co_return Result<void>();
}

// Those whose time is over, and the remains of drops that did not succeed.
Task<void> Service::sweep_images() {
  (void)parts_.store.spend_build_images(now_millis() - kKeepSteps);
  auto expired = parts_.store.expired_images(now_millis());
  if (expired)
    for (const auto& image : *expired)
      if (parts_.store.spend_snapshot(image.id)) log::info("sandbox", "snapshot {} has expired", image.id);
  auto all = parts_.store.all_images();
  if (!all) co_return;
  charge_snapshots(*all);
  std::set<std::string> known;
  {
    // What the store could not be told yet, too.
    std::shared_lock lock(mutex_);
    for (const auto& [id, box] : boxes_) known.insert(box->of_record([](const auto& r) { return r.image; }));
  }
  for (const auto& image : *all) {
    known.insert(image.id);
    if (image.kind == store::ImageKind::spent) co_await drop_spent(image.id);
  }
  auto there = co_await parts_.launcher->images();
  if (!there) co_return;
  std::map<std::string, uint64_t> seen;
  std::vector<std::string> drop;
  for (const auto& image : *there) {
    // Only what was made of our sandboxes is ours to drop; and what a pause made is perhaps all that there is of one.
    if (known.contains(image.id)) continue;
    auto owner = parts_.store.find_sandbox(image.sandbox);
    if (!owner || (image.verb == "pause" && owner->state != State::ended)) continue;
    std::lock_guard lock(launch_mutex_);
    auto before = strange_images_.find(image.id);
    uint64_t mark = before == strange_images_.end() ? launches_ : before->second;
    bool nobodys = before != strange_images_.end() && (launching_.empty() || *launching_.begin() >= mark);
    if (nobodys)
      drop.push_back(image.id);
    else
      seen[image.id] = mark;
  }
  {
    std::lock_guard lock(launch_mutex_);
    strange_images_ = std::move(seen);
  }
  for (const auto& id : drop) {
    log::warn("sandbox", "dropping image {}: nobody knows it", id);
    (void)co_await parts_.launcher->drop_image(id);
  }
}

// A paused sandbox is charged for what it keeps like a running one; a snapshot has a row of its own now and then.
void Service::charge_snapshots(const std::vector<store::ImageRecord>& images) {
  Millis now = now_millis(), every = settings().sample.count();
  std::map<std::string, Millis> until;
  for (const auto& image : images) {
    using Kind = store::ImageKind;
    if (image.kind != Kind::snapshot && image.kind != Kind::step && image.kind != Kind::built) continue;
    auto known = stored_until_.find(image.id);
    Millis from = known == stored_until_.end() ? std::max(image.created, started_) : known->second;
    if (now - from >= every) {
      accounts_.charge_storage(image.project, image.id, image.bytes(), from, now);
      from = now;
    }
    until[image.id] = from;
  }
  stored_until_ = std::move(until);
}

// ---- fork -----------------------------------------------------------------------------------------------------------

// A fork under way: a few children at a time, as many as there are processors to make them.
struct Service::Forking {
  std::string image;
  store::SandboxRecord parent;
  ForkRequest request;
  std::mutex mutex;
  Bell bell;
  uint32_t next = 0, working = 0;
  Forked out;
  std::optional<Error> failed;  // no more are begun
};

Task<Result<Forked>> Service::fork(BoxPtr box, ForkRequest request) {
  auto self = shared_from_this();
  if (request.count < 1 || request.count > kMostForks)
    co_return fail(Code::invalid, fmt::format("count: must be between 1 and {}", kMostForks));
  ISOLA_CO_CHECK(co_await wake_for(box));
  auto forking = std::make_shared<Forking>();
  forking->parent = box->record();
  forking->request = request;
  CreateRequest one;
  one.project = box->project();
  one.task = forking->parent.task;
  one.limits = forking->parent.limits;
  // Looked at before anything is made; the store decides for each.
  uint32_t admitted = 0;
  std::optional<Error> refused;
  for (; admitted < request.count && !refused; ++admitted)
    if (auto may = admit(one); !may) refused = may.error();
  if (refused) --admitted;
  if (refused && (!request.each || admitted == 0)) co_return std::unexpected(*refused);
  forking->request.count = admitted;
  Launching under_way(*this);
  {
    Box::Turn turn = co_await box->turn();
    ISOLA_CO_CHECK(must_run(box));
    forking->parent = box->record();  // what was changed while others had their turn is theirs, too
    if (forking->parent.exposed && !request.allow_exposed) co_return no_image_of_exposed(box->id());
    launcher::CheckpointRequest ask{.id = box->id(), .memory = true, .keep_running = true};
    ISOLA_CO_TRY(auto saved, co_await save(box, std::move(ask)));
    forking->image = saved.image;
  }
  uint32_t hands = std::min(admitted, 2 * std::max(1u, std::thread::hardware_concurrency()));
  forking->working = hands;
  for (uint32_t i = 0; i < hands; ++i) net::co_spawn(parts_.next_worker(), make_forks(forking), net::detached);
  for (;;) {
    uint64_t ticket = forking->bell.ticket();
    {
      std::lock_guard lock(forking->mutex);
      if (forking->working == 0) break;
    }
    co_await forking->bell.wait(ticket);
  }
  (void)co_await parts_.launcher->drop_image(forking->image);
  Forked& out = forking->out;
  if (forking->failed && !request.each) {
    // All of them or none.
    for (const auto& child : out.made)
      (void)co_await kill(child.box, EndReason::killed, "a fork beside it failed: " + forking->failed->message);
    co_return std::unexpected(*forking->failed);
  }
  // Those that were not begun have the reason of the one that was.
  const auto& why = forking->failed ? forking->failed : refused;
  while (why && out.made.size() + out.refused.size() < request.count) out.refused.push_back(*why);
  json data = {{"children", json::array()}, {"image", forking->image}};
  for (const auto& child : out.made) data["children"].push_back(child.box->id());
  if (!out.refused.empty()) data["refused"] = out.refused.size();
  record(ledger::Kind::sandbox_forked, box, data.dump(), request.by);
  co_return std::move(out);
}

Task<void> Service::make_forks(std::shared_ptr<Forking> forking) {
  auto self = shared_from_this();
  for (;;) {
    {
      std::lock_guard lock(forking->mutex);
      if (forking->failed || forking->next == forking->request.count) break;
      ++forking->next;
    }
    auto made = co_await make_fork(*forking);
    std::lock_guard lock(forking->mutex);
    if (made) {
      forking->out.made.push_back(std::move(*made));
      continue;
    }
    forking->out.refused.push_back(made.error());
    // What the project may not have, the next would not get either.
    const bool stop = !forking->request.each || made.error().code == Code::exhausted;
    if (stop && !forking->failed) forking->failed = made.error();
  }
  {
    std::lock_guard lock(forking->mutex);
    --forking->working;
  }
  forking->bell.ring();
}

// What its parent has, but for what is its own: id, tokens, ranges, names.
Task<Result<Created>> Service::make_fork(Forking& forking) {
  const auto& parent = forking.parent;
  ISOLA_CO_TRY(auto buckets, buckets_of(parent.project, parent.volumes));
  launcher::LaunchRequest ask{
      .limits = parent.limits,
      .boundary = {.wish = wish_for(parent.boundary), .at_least = least_boundary(parent.project)},
      .ephemeral = false,
      .allow_unquotaed = settings().allow_unquotaed_disk,
      .volumes = mounts_of(parent.volumes),
      .buckets = std::move(buckets),
      .image = forking.image,
      .forked = true};
  auto launched = co_await parts_.launcher->launch(std::move(ask));
  if (!launched) co_return std::unexpected(std::move(launched).error());
  store::SandboxRecord record = parent;
  Millis now = now_millis();
  record.id = launched->reply.id;
  record.name.clear();
  record.key.clear();
  record.birth = launched->reply.birth;
  record.state = State::running;
  record.created = record.last_active = now;
  record.cpu_before = 0;
  if (!forking.request.by.key.empty()) record.made_by = forking.request.by.key;
  if (!forking.request.by.actor.empty())
    record.actor = forking.request.by.actor;
  else if (!forking.request.by.key.empty())
    record.actor = forking.request.by.key;
  if (forking.request.metadata) record.metadata = *forking.request.metadata;
  if (forking.request.timeout) record.lifetime.timeout = *forking.request.timeout;
  record.lifetime.deadline = record.lifetime.timeout ? now + record.lifetime.timeout : 0;
  if (!record.traffic_token.empty()) record.traffic_token = new_token();
  record.granted = parent.granted && forking.request.keep_grants;
  ISOLA_CO_TRY(BoxPtr box, co_await take_in(std::move(record), std::move(launched->link)));
  json data = {{"template", parent.template_name},
               {"boundary", to_string(parent.boundary)},
               {"birth", "forked"},
               {"parent", parent.id}};
  data["latency_us"] = latency_data(launched->reply.latency);
  this->record(ledger::Kind::sandbox_created, box, data.dump(), forking.request.by);
  note_buckets(box, forking.request.by);
  Result<void> ready;
  if (forking.request.keep_grants) ready = co_await copy_grants(parent, box, forking.request.by);
  if (ready) {
    Box::Turn turn = co_await box->turn();
    ready = co_await renew_network(box, true);
  }
  if (ready) co_await place_certificate(box);
  if (!ready) {
    Error why = ready.error();
    (void)co_await kill(box, EndReason::killed, why.message);
    co_return std::unexpected(why);
  }
  if (!publish(box)) co_return fail(Code::unavailable, "the sandbox ended while it was being made");
  ++counters.created;
  ++counters.forked;
  co_return Created{box, false, launched->reply.latency};
}

// Snapshots and forks are made of what runs; one that sleeps is resumed for it, if that is its way.
Task<Result<void>> Service::wake_for(BoxPtr box) {
  auto record = box->record();
  if (record.state == State::frozen && record.end_detail == kIdleFreeze) co_return co_await thaw(box);
  if (!store::is_asleep(record.state)) co_return Result<void>();
  co_return co_await wake(box);
}

}  // namespace isola::sandbox
