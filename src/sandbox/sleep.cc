// Pause, resume, rollback: a sandbox goes into an image and comes out of one.
//
// What is on disk when: a pause is the launcher's image first and then one transaction that says so; a resume is
// written down as under way (creating, with its image), the launcher drops the image when the guest answers, and then
// one transaction says that the sandbox runs. So whoever is killed at whatever moment: there is the sandbox or its
// image, and start() (reunion.cc) can tell which.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/image_records.h"
#include "sandbox/launching.h"
#include "sandbox/quiet_run.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

namespace {

std::set<std::string> places(const std::vector<store::VolumeUse>& volumes) {
  std::set<std::string> all;
  for (const auto& use : volumes) all.insert(use.path);
  return all;
}

bool over(State state) { return state == State::ended || state == State::ending; }

}  // namespace

// The link falls silent, the launcher makes the image, and whoever was talking goes on where they were.
Task<Result<launcher::CheckpointReply>> Service::save(BoxPtr box, launcher::CheckpointRequest request) {
  bool memory = request.memory, goes_on = request.keep_running;
  std::shared_ptr<GuestLink> link;
  if (memory) {
    ISOLA_CO_TRY(link, co_await box->link(*parts_.launcher, Box::Asks::the_one));
    auto quiet = co_await link->call(guest::Op::quiesce, {});
    if (!quiet) co_return std::unexpected(quiet.error().in("the sandbox could not be brought to rest"));
  }
  box->link_may_be_silent(true);  // for as long as its memory takes
  auto saved = co_await parts_.launcher->checkpoint(std::move(request));
  box->link_may_be_silent(false);
  if (link && (goes_on || !saved)) (void)co_await link->call(guest::Op::go_on, guest::encoded_go_on());
  co_return saved;
}

Result<void> Service::room_to_keep(const BoxPtr& box, uint64_t bytes) {
  ISOLA_TRY(auto project, parts_.store.find_project(box->project()));
  if (project.limits.stored == 0) return {};
  ISOLA_TRY(auto use, parts_.store.project_use(box->project()));
  if (use.stored + bytes <= project.limits.stored) return {};
  return fail(Code::exhausted,
              fmt::format("this project's limit of {} stored bytes is reached ({} in use, about {} needed)",
                          project.limits.stored, use.stored, bytes));
}

Task<Result<void>> Service::pause(BoxPtr box, PauseRequest request) {
  auto self = shared_from_this();
  Box::Turn turn = co_await box->turn();
  if (store::is_asleep(box->state())) co_return write_sleep(box);
  if (over(box->state())) co_return has_ended(box->id());
  // Its maker would find it gone, and end what somebody was told is kept.
  if (box->state() == State::creating) co_return conflict("sandbox " + box->id() + " is still being made");
  if (request.still && !request.still()) co_return conflict("there is no reason to pause it any more");
  if (request.memory && box->record().exposed && !request.allow_exposed) {
    if (request.why.empty()) co_return no_image_of_exposed(box->id());
    request.memory = false;  // of our own accord: its files are kept
  }
  auto stats = co_await parts_.launcher->stats(box->id());
  if (stats) {
    accounts_.charge(*box, *stats);
    ISOLA_CO_CHECK(room_to_keep(box, stats->disk_bytes + (request.memory ? stats->memory_bytes : 0)));
  }
  Launching under_way(*this);
  Box::Shut shut(box);
  // Whoever came before it was shut is waited for; whoever comes now waits for us.
  if (request.unless_used && box->in_use()) co_return conflict("sandbox " + box->id() + " is in use");
  const auto before = box->record();
  // What a budget holds in the ice it holds in its sleep, too.
  if (auto spent = before.state == State::frozen ? held_by(box) : std::nullopt) request.why = spent->text();
  const bool thawed = before.state == State::frozen && request.memory;
  if (thawed) {
    ISOLA_CO_CHECK(co_await parts_.launcher->thaw(box->id()));
    if (!box->change_from(State::frozen, [](auto& r) { r.state = State::running, r.end_detail.clear(); }))
      co_return has_ended(box->id());
    box->link_may_be_silent(false);
  }
  launcher::CheckpointRequest ask{.id = box->id(), .memory = request.memory, .keep_running = false};
  auto saved = co_await save(box, std::move(ask));
  if (!saved) {
    Error why = saved.error();
    box->may_be_paused = true;
    // Perhaps it ended in the middle of it, for whatever reason. The launcher may just be being restarted.
    Result<void> owned;
    for (int attempt = 0; attempt < 50; ++attempt) {
      owned = co_await parts_.launcher->own(box->id());
      if (owned || owned.error().code != Code::unavailable) break;
      Bell never;
      (void)co_await never.wait_for(never.ticket(), std::chrono::milliseconds(100));
    }
    if (!owned && owned.error().code == Code::not_found)
      co_await found_gone(box, EndReason::boundary_failure, "it ended while it was being paused");
    // As it was: the store has not been told anything else. (Not in one condition: g++ 12 awaits all of it.)
    if (owned && thawed) {
      auto frozen = co_await parts_.launcher->freeze(box->id());
      auto again = [&](auto& r) { r.state = State::frozen, r.end_detail = before.end_detail; };
      if (frozen && box->change_from(State::running, again)) box->link_may_be_silent(true);
    }
    co_return std::unexpected(why);
  }
  auto image = image_record(box->record(), *saved, request.memory, store::ImageKind::pause);
  if (fall_asleep(box, image, request, &saved->latency)) co_return write_sleep(box);
  (void)co_await parts_.launcher->drop_image(image.id);
  co_return has_ended(box->id());
}

// The end waits for nobody: it may have begun meanwhile, and then stands.
bool Service::fall_asleep(const BoxPtr& box, store::ImageRecord image, const PauseRequest& request,
                          const Latency* latency) {
  State to = image.memory ? State::paused : State::stopped;
  Millis now = now_millis();
  auto sleep = [&](auto& r) { r.state = to, r.image = image.id, r.asleep = now, r.end_detail = request.why; };
  State from = box->state();
  if (store::is_asleep(from)) return box->record().image == image.id;  // somebody else has found it
  if (over(from) || !box->change_from(from, sleep)) return false;
  // Whatever the disk says: the image is there, and a server that starts finds it.
  {
    std::lock_guard lock(sleeps_mutex_);
    unwritten_sleeps_[box->id()] = image;
  }
  if (auto stored = write_sleep(box); !stored) {
    log::error("sandbox", "{}: {}", box->id(), stored.error().message);
    net::co_spawn(box->home(), write_sleep_later(box), net::detached);
  }
  box->close_link({Code::unavailable, "the sandbox was paused"});
  accounts_.write(*box);
  accounts_.set_frozen(*box, true);
  (void)parts_.store.touch({{box->id(), box->last_active()}});
  json data = {{"state", to_string(to)},
               {"image", image.id},
               {"memory_bytes", image.memory_bytes},
               {"layer_bytes", image.layer_bytes}};
  if (!request.why.empty()) data["reason"] = request.why;
  if (latency) data["latency_us"] = latency_data(*latency);
  ++counters.paused;
  record(ledger::Kind::sandbox_paused, box, data.dump(-1, ' ', false, json::error_handler_t::replace), request.by);
  arm(box);
  return true;
}

// What it sleeps in, where the store was not told yet: nothing is done with the image before the store knows it, and
// whoever asked for the pause hears that it may be lost on a crash of more than this server. In the box's turn.
Result<void> Service::write_sleep(const BoxPtr& box) {
  std::lock_guard lock(sleeps_mutex_);
  auto at = unwritten_sleeps_.find(box->id());
  if (at == unwritten_sleeps_.end()) return {};
  auto record = box->record();
  if (store::is_asleep(record.state) && record.image == at->second.id) {
    auto stored = parts_.store.set_asleep(record.id, record.state, at->second, record.asleep, record.end_detail);
    if (!stored) return std::unexpected(stored.error().in("it is paused, but that cannot be written down yet"));
  }
  unwritten_sleeps_.erase(at);
  return {};
}

Task<void> Service::write_sleep_later(BoxPtr box) {
  auto self = shared_from_this();
  for (auto pause = std::chrono::seconds(1);; pause = std::min(pause * 2, std::chrono::seconds(60))) {
    Bell never;
    (void)co_await never.wait_for(never.ticket(), pause);
    Box::Turn turn = co_await box->turn();
    if (write_sleep(box)) co_return;
  }
}

Task<Result<Latency>> Service::resume(BoxPtr box, ResumeRequest request) {
  auto self = shared_from_this();
  Box::Turn turn = co_await box->turn();
  if (box->state() == State::frozen) ISOLA_CO_CHECK(co_await thaw_now(box, request.by));
  if (box->state() == State::running) co_return Latency{};
  if (!store::is_asleep(box->state())) co_return has_ended(box->id());
  ISOLA_CO_CHECK(may_go_on(box));
  co_return co_await wake_up(box, std::move(request));
}

// What brings one back that sleeps.
launcher::LaunchRequest Service::launch_of(const store::SandboxRecord& record,
                                           std::vector<launcher::BucketMount> buckets) {
  return {.limits = record.limits,
          .boundary = {.wish = wish_for(record.boundary), .at_least = least_boundary(record.project)},
          .ephemeral = false,
          .allow_unquotaed = settings().allow_unquotaed_disk,
          .volumes = mounts_of(record.volumes),
          .buckets = std::move(buckets),
          .image = record.image,
          .id = record.id,
          .spend = true,
          .life = record.asleep};
}

// Its turn is the caller's.
Task<Result<Latency>> Service::wake_up(BoxPtr box, ResumeRequest request) {
  auto use = box->use();
  ISOLA_CO_CHECK(write_sleep(box));
  co_await take_stock(box);  // what it took while it slept
  if (box->state() == State::archived) ISOLA_CO_CHECK(co_await unpack(box));
  auto record = box->record();
  State before = record.state;
  // Held against the project's limits again from here on.
  ISOLA_CO_CHECK(parts_.store.set_state(box->id(), State::creating));
  Box::Shut shut(box);
  if (!box->change_from(before, [](auto& r) { r.state = State::creating; })) co_return has_ended(box->id());
  auto back_to_sleep = [&] {
    box->close_link({Code::unavailable, "the sandbox could not be resumed"});
    if (box->change_from(State::creating, [&](auto& r) { r.state = before; }))
      (void)parts_.store.set_state(box->id(), before);
    arm(box);
  };
  auto buckets = buckets_of(record.project, record.volumes);
  if (!buckets) {
    back_to_sleep();
    co_return std::unexpected(buckets.error());
  }
  // What it was granted it has to be granted again: what comes out of an image may have been waiting for this. Before
  // there is anything: whoever finds it alive, or has it run without its policy, does not know what was asked here.
  if (!request.keep_grants.value_or(record.keep_grants)) {
    auto dropped = co_await drop_grants(box);
    if (!dropped) {
      back_to_sleep();
      co_return std::unexpected(dropped.error());
    }
  }
  std::optional<Launching> under_way(std::in_place, *this);
  auto ask = launch_of(record, std::move(*buckets));
  ask.files_only = request.files_only;
  auto launched = co_await parts_.launcher->launch(ask);
  if (!launched && launched.error().code == Code::unavailable &&
      launched.error().message.find(" is packed") != std::string::npos) {
    // It was packed, and whoever asked for that died before it was written down.
    auto unpacked = co_await parts_.launcher->pack_image(record.image, false);
    if (unpacked) launched = co_await parts_.launcher->launch(ask);
  }
  if (!launched) {
    // A rollback wrote down that it goes back, and did not come to end what there was.
    auto given_up = co_await end_given_up(box);
    if (given_up && *given_up) launched = co_await parts_.launcher->launch(std::move(ask));
  }
  const bool fresh = launched.has_value();
  if (!launched) {
    Error why = launched.error();
    // Perhaps an earlier resume came so far, and only its answer got lost.
    launched = co_await find_again(box);
    if (!launched) {
      back_to_sleep();
      co_return std::unexpected(why);
    }
  }
  box->set_link(GuestLink::start(box->home(), std::move(launched->link), settings().patience, box->screening()));
  note_buckets(box, request.by);
  // It reaches nothing until its policy is in force.
  auto ready = co_await renew_network(box, fresh);
  bool anew = launched->reply.birth == Birth::cold;
  // Its processes were not kept, and their numbers are given to others.
  if (anew)
    for (const auto& command : box->commands())
      if (command.ended == 0) command_ended(box, command.id, guest::Exit{});
  if (ready && anew) ready = co_await configure(box, record.env, true);
  if (ready) ready = awake(box, State::creating, launched->reply.birth, request.timeout);
  // Its end began meanwhile, perhaps before there was anything to end.
  if (over(box->state())) {
    (void)co_await parts_.launcher->kill(box->id());
    co_return has_ended(box->id());
  }
  if (!ready) {
    // Its image is used up: it goes into another.
    Error why = ready.error();
    launcher::CheckpointRequest again{.id = box->id(), .memory = !anew, .keep_running = false};
    auto saved = co_await save(box, std::move(again));
    if (saved) {
      auto image = image_record(box->record(), *saved, !anew, store::ImageKind::pause);
      PauseRequest again_asleep;
      again_asleep.why = "it could not be resumed: " + why.message;
      if (!fall_asleep(box, image, again_asleep, nullptr)) (void)co_await parts_.launcher->drop_image(image.id);
      co_return std::unexpected(why);
    }
    // Nor that: better without a network than not at all.
    log::error("sandbox", "{} is resumed without its policy: {}", box->id(), why.message);
    auto up = awake(box, State::creating, launched->reply.birth, request.timeout);
    if (!up) {
      // It runs, and nobody may know it yet: as soon as that can be written down.
      if (!over(box->state()))
        net::co_spawn(box->home(), awake_later(box, launched->reply.birth, request.timeout), net::detached);
      co_return std::unexpected(up.error());
    }
  }
  under_way.reset();  // its hooks may take long
  shut.open();
  co_await place_certificate(box);
  // An end that came before anybody could hear of it.
  auto owned = co_await parts_.launcher->own(box->id());
  if (!owned && owned.error().code == Code::not_found) {
    co_await found_gone(box, EndReason::boundary_failure, "it ended as soon as it was resumed");
    co_return has_ended(box->id());
  }
  json data = {{"birth", to_string(launched->reply.birth)}, {"image", record.image}};
  data["latency_us"] = latency_data(launched->reply.latency);
  if (!record.on_resume.empty()) {
    auto ran = co_await run_hooks(box, record.on_resume, "on_resume");
    if (!ran) data["hook_error"] = own_words(ran.error().message);
  }
  this->record(ledger::Kind::sandbox_resumed, box, data.dump(-1, ' ', false, json::error_handler_t::replace),
               request.by);
  ++counters.resumed;
  forget_if_spent(record.image);
  // Commands that went into the image run again: their ends are to be written down as before.
  net::co_spawn(box->home(), catch_up(box), net::detached);
  co_return launched->reply.latency;
}

// Written down: it runs, and its image is spent.
Result<void> Service::awake(const BoxPtr& box, State from, Birth birth, std::optional<Millis> timeout) {
  auto lifetime = box->record().lifetime;
  Millis now = now_millis();
  if (timeout) lifetime.timeout = *timeout;
  lifetime.deadline = lifetime.timeout ? now + lifetime.timeout : 0;
  uint64_t cpu = accounts_.used_by(*box).cpu_usec;
  if (box->state() != from) return has_ended(box->id());
  ISOLA_CHECK(parts_.store.set_awake(box->id(), birth, lifetime, cpu, now));
  bool still = box->change_from(from, [&](auto& r) {
    r.state = State::running;
    r.birth = birth;
    r.lifetime = lifetime;
    r.image.clear();
    r.asleep = 0;
    r.cpu_before = cpu;
    r.end_detail.clear();
  });
  if (!still) return has_ended(box->id());
  accounts_.reborn(*box);
  box->forget_oom_kills();
  arm(box);
  return {};
}

// In nobody's turn: while it is being made (its state says so) no verb touches it but its end.
Task<void> Service::awake_later(BoxPtr box, Birth birth, std::optional<Millis> timeout) {
  auto self = shared_from_this();
  for (auto pause = std::chrono::seconds(1);; pause = std::min(pause * 2, std::chrono::seconds(60))) {
    Bell never;
    (void)co_await never.wait_for(never.ticket(), pause);
    Box::Turn turn = co_await box->turn();
    if (box->state() != State::creating) co_return;
    if (!awake(box, State::creating, birth, timeout)) continue;
    // It came up without: nobody could be told of it.
    if (auto told = co_await renew_network(box, false); !told)
      log::error("sandbox", "{} is resumed without its policy: {}", box->id(), told.error().message);
    turn.release();
    co_return co_await relink(box);
  }
}

// It is there, and ours.
Task<Result<Launched>> Service::find_again(BoxPtr box) {
  ISOLA_CO_CHECK(co_await parts_.launcher->own(box->id()));
  Launched found;
  ISOLA_CO_TRY(found.link, co_await parts_.launcher->link(box->id()));
  found.reply.id = box->id();
  found.reply.birth = Birth::resumed;
  co_return found;
}

Task<Result<bool>> Service::end_given_up(BoxPtr box) {
  auto record = box->record();
  // Whatever lives of one that was paused came out of that image: by a resume whose answer got lost.
  auto image = parts_.store.find_image(record.image);
  if (image && image->kind == store::ImageKind::pause) co_return false;
  ISOLA_CO_TRY(auto there, co_await parts_.launcher->list());
  auto living = std::ranges::find(there, record.id, &launcher::SandboxSummary::id);
  if (living == there.end() || living->life == record.asleep) co_return false;
  log::warn("sandbox", "{} was rolled back and yet lives: ending what it was", record.id);
  auto ended = co_await kill_there(record.id);
  if (!ended && ended.error().code != Code::not_found) co_return std::unexpected(ended.error());
  co_return true;
}

Task<Result<Latency>> Service::rollback(BoxPtr box, std::string snapshot, Caller by) {
  auto self = shared_from_this();
  ISOLA_CO_TRY(auto image, find_snapshot(box->project(), snapshot));
  Box::Turn turn = co_await box->turn();
  if (over(box->state())) co_return has_ended(box->id());
  // As for a pause: its maker would find another in its place.
  if (box->state() == State::creating) co_return conflict("sandbox " + box->id() + " is still being made");
  const auto had = box->record().volumes;
  if (image.memory && places(image.volumes) != places(had))
    co_return conflict("snapshot " + image.id + " has its volumes at other places than the sandbox");
  ISOLA_CO_CHECK(may_go_on(box));
  ISOLA_CO_CHECK(write_sleep(box));
  // What it is now is given up for the snapshot: so that must be one that can be used, and by this sandbox.
  auto after = box->record();
  after.image = image.id;
  ISOLA_CO_TRY(auto buckets, buckets_of(after.project, after.volumes));
  auto wanted = launch_of(after, std::move(buckets));
  ISOLA_CO_CHECK(co_await parts_.launcher->verify_image(image.id, false, std::move(wanted)));
  if (over(box->state())) co_return has_ended(box->id());
  auto before = box->record();
  bool alive = !store::is_asleep(before.state);
  if (alive) co_await take_stock(box);
  {
    Box::Shut shut(box);
    if (image.memory && image.exposed && !before.exposed) {
      store::SandboxChange change;
      change.exposed = true;
      ISOLA_CO_CHECK(parts_.store.change_sandbox(box->id(), change));
      box->change([](auto& r) { r.exposed = true; });
    }
    const Millis now = now_millis();
    ISOLA_CO_CHECK(parts_.store.set_rolled_back(box->id(), image.id, now));
    bool still = box->change_from(before.state, [&](auto& r) {
      r.state = image.memory ? State::paused : State::stopped;
      r.image = image.id;
      r.asleep = now;
      r.end_detail.clear();
    });
    if (!still) co_return has_ended(box->id());
    accounts_.set_frozen(*box, true);
    box->close_link({Code::unavailable, "the sandbox was rolled back"});
    box->forget_commands();
    forget_if_spent(before.image);
    if (alive) {
      // What cannot be ended now is ended before anything is resumed: nobody gets back to it.
      auto ended = co_await kill_there(box->id());
      if (!ended && ended.error().code != Code::not_found)
        co_return std::unexpected(ended.error().in("it is to go back to the snapshot, but cannot be ended yet"));
    }
  }
  (void)parts_.store.touch_image(image.id, now_millis());
  ResumeRequest same;
  same.by = by;
  auto woken = co_await wake_up(box, same);
  if (!woken) co_return std::unexpected(woken.error().in("the sandbox is paused where the snapshot is"));
  json data = {{"rolled_back_to", image.id}};
  record(ledger::Kind::sandbox_updated, box, data.dump(), by);
  co_return *woken;
}

// A call on a sandbox that sleeps: resumed, if its lifetime says so.
Task<Result<void>> Service::wake(BoxPtr box) {
  auto record = box->record();
  if (!record.lifetime.auto_resume)
    co_return conflict("sandbox " + box->id() + " is " + std::string(to_string(record.state)) + "; resume it first");
  ResumeRequest usual;
  auto woken = co_await resume(box, usual);
  if (!woken) co_return std::unexpected(woken.error());
  co_return Result<void>();
}

Task<Result<std::shared_ptr<GuestLink>>> Service::link(BoxPtr box) {
  for (int attempt = 0;; ++attempt) {
    auto link = co_await box->link(*parts_.launcher);
    if (link && box->has_new_link()) net::co_spawn(box->home(), catch_up(box), net::detached);
    // It may be paused again before we get there: not for ever.
    if (link || attempt >= 3) co_return link;
    auto record = box->record();
    if (record.state == State::frozen && record.end_detail == kIdleFreeze)
      ISOLA_CO_CHECK(co_await thaw(box));
    else if (store::is_asleep(record.state))
      ISOLA_CO_CHECK(co_await wake(box));
    else
      co_return link;
  }
}

Task<Result<std::shared_ptr<GuestLink>>> Service::link_if_awake(BoxPtr box) {
  auto link = co_await box->link(*parts_.launcher);
  if (link && box->has_new_link()) net::co_spawn(box->home(), catch_up(box), net::detached);
  co_return link;
}

// ---- images that nobody needs any more ------------------------------------------------------------------------------

void Service::forget_if_spent(const std::string& image) {
  if (image.empty()) return;
  auto record = parts_.store.find_image(image);
  if (!record || record->kind != store::ImageKind::spent) return;
  net::co_spawn(parts_.next_worker(), drop_spent(image), net::detached);
}

// What fails here is tried again by the sweep.
Task<void> Service::drop_spent(std::string image) {
  auto self = shared_from_this();
  {
    std::lock_guard lock(pool_mutex_);
    pools_.erase(image);
  }
  auto dropped = co_await parts_.launcher->drop_image(image);
  if (dropped || dropped.error().code == Code::not_found) (void)parts_.store.forget_image(image);
}

}  // namespace isola::sandbox
