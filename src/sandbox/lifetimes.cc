// When a sandbox's time is up, and when to look at what it used. One timer of each kind per sandbox, on its home
// worker: nothing here walks over all of them.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/box_timers.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;

namespace {

std::chrono::milliseconds left_until(Millis when) {
  return std::chrono::milliseconds(std::max<Millis>(0, when - now_millis()));
}

bool over(const BoxPtr& box) {
  State state = box->state();
  return state == State::ended || state == State::ending;
}

// Being resumed: its clocks are those of before its sleep until awake() sets them anew.
bool comes_back(const store::SandboxRecord& record) { return record.state == State::creating && !record.image.empty(); }

// One that sleeps has no time of its own but the one after which it is thrown away.
Millis when_up(const store::SandboxRecord& record) {
  if (comes_back(record)) return 0;
  if (!store::is_asleep(record.state)) return record.lifetime.deadline;
  return record.lifetime.delete_after ? record.asleep + record.lifetime.delete_after : 0;
}

// Whether that time is up as its record is now: whoever extended it has his answer, though the old clock was just
// being heard, or somebody else's turn was waited for.
bool is_up(const store::SandboxRecord& record, EndReason reason, Millis last_active) {
  if (reason == EndReason::deadline) {
    Millis when = when_up(record);
    return when != 0 && now_millis() >= when;
  }
  if (reason == EndReason::idle)  // one that sleeps has no such clock
    return !store::is_asleep(record.state) && !comes_back(record) && record.lifetime.idle_limit != 0 &&
           now_millis() - last_active >= record.lifetime.idle_limit;
  return true;
}

}  // namespace

// Later: whoever made or changed it does not wait for its clocks.
void Service::arm(const BoxPtr& box) {
  net::post(box->home(), [self = shared_from_this(), box] {
    self->arm_deadline(box);
    self->arm_idle(box);
    self->arm_sample(box);
  });
}

void Service::arm_deadline(const BoxPtr& box) {
  auto& timer = box->timers->deadline;
  timer.cancel();
  Millis when = when_up(box->record());
  if (when == 0 || over(box)) return;
  timer.expires_after(left_until(when));
  timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(box)](boost::system::error_code error) {
    if (auto alive = weak.lock(); alive && !error) self->time_is_up(alive, EndReason::deadline, "its time was up");
  });
}

void Service::arm_idle(const BoxPtr& box) {
  auto& timer = box->timers->idle;
  timer.cancel();
  auto record = box->record();
  if (store::is_asleep(record.state)) return arm_archive(box, record);
  if (comes_back(record)) return;
  Millis limit = record.lifetime.idle_limit;
  Millis freeze = record.state == State::running ? record.lifetime.freeze_after : 0;
  if ((limit == 0 && freeze == 0) || over(box)) return;
  // Activity only notes the time; this looks again when the limit could have been reached.
  Millis from = box->in_use() ? now_millis() : box->last_active();
  Millis first = limit && freeze ? std::min(limit, freeze) : std::max(limit, freeze);
  timer.expires_after(left_until(from + first));
  timer.async_wait(
      [self = shared_from_this(), weak = std::weak_ptr(box), limit, freeze](boost::system::error_code error) {
        auto alive = weak.lock();
        if (!alive || error) return;
        Millis idle = alive->in_use() ? 0 : now_millis() - alive->last_active();
        if (limit && idle >= limit)
          return self->time_is_up(alive, EndReason::idle, "nobody used it for its idle limit");
        if (freeze && idle >= freeze)
          net::co_spawn(alive->home(), self->stand_still(alive), net::detached);
        else
          self->arm_idle(alive);
      });
}

// One that sleeps is not idle: its timer tells when it is to be packed.
void Service::arm_archive(const BoxPtr& box, const store::SandboxRecord& record) {
  Millis after = record.lifetime.archive_after;
  if (after == 0 || record.state == State::archived) return;
  auto& timer = box->timers->idle;
  timer.expires_after(left_until(record.asleep + after));
  timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(box)](boost::system::error_code error) {
    if (auto alive = weak.lock(); alive && !error) net::co_spawn(alive->home(), self->put_away(alive), net::detached);
  });
}

// For a short while of idling: it takes no processor time, and is there again at the next call.
Task<void> Service::stand_still(BoxPtr box) {
  auto self = shared_from_this();
  if (!box->in_use()) (void)co_await freeze(box, kIdleFreeze);
  arm(box);
}

void Service::time_is_up(const BoxPtr& box, EndReason reason, const std::string& detail) {
  if (over(box)) return;
  net::co_spawn(box->home(), end_of_time(box, reason, detail), net::detached);
}

// What its lifetime says: killed, or put to sleep. What cannot be kept with its memory is kept without; what cannot be
// kept at all (no room, too many images in a row) stands still where it is, since its owner wanted it back.
Task<void> Service::end_of_time(BoxPtr box, EndReason reason, std::string detail) {
  auto self = shared_from_this();
  // Its image would be spent with it. It is armed again as soon as it is there, or sleeps on.
  if (comes_back(box->record())) co_return;
  auto at_end = box->record().lifetime.at_end;
  bool keep = at_end != store::AtEnd::kill && reason != EndReason::limit && !store::is_asleep(box->state());
  if (store::is_asleep(box->state()) && reason == EndReason::deadline)
    detail = "nobody resumed it for as long as its delete_after";
  auto due = [box, reason](const store::SandboxRecord& record) {
    return is_up(record, reason, box->in_use() ? now_millis() : box->last_active());
  };
  auto still = [box, due] { return due(box->record()); };
  if (!keep) {
    Caller nobody;
    (void)co_await kill(box, reason, detail, nobody, due);
    if (!over(box)) arm(box);
    co_return;
  }
  // That it could not be written down yet, too: it sleeps, and nothing more is to be done to it.
  auto done = [&] { return over(box) || store::is_asleep(box->state()) || comes_back(box->record()); };
  bool idle = reason == EndReason::idle;
  PauseRequest whole{.memory = at_end == store::AtEnd::pause, .why = detail, .unless_used = idle, .still = still};
  auto paused = co_await pause(box, whole);
  if (paused || done()) co_return;
  if ((idle && box->in_use()) || !still()) co_return arm(box);  // somebody came, or gave it more time
  Error why = paused.error();
  if (whole.memory && why.code != Code::exhausted) {
    log::warn("sandbox", "{} cannot be paused with its memory: {}", box->id(), why.message);
    PauseRequest files{
        .memory = false, .why = detail + " (its memory could not be kept: " + why.message + ")", .still = still};
    paused = co_await pause(box, files);
    if (paused || done()) co_return;
    if (!still()) co_return arm(box);
  }
  detail += "; it could not be paused: " + paused.error().message;
  log::warn("sandbox", "{}: {}", box->id(), detail);
  Caller nobody;
  auto frozen = co_await freeze(box, detail, nobody, still);
  if (frozen || box->state() == State::frozen) co_return;
  (void)co_await kill(box, reason, detail, nobody, due);
  if (!over(box)) arm(box);
}

// The launcher could not end it. Nobody else will think of it again.
void Service::kill_later(const BoxPtr& box) {
  net::dispatch(box->home(), [self = shared_from_this(), box] {
    auto& timer = box->timers->ending;
    timer.expires_after(std::chrono::seconds(1));
    timer.async_wait([self, weak = std::weak_ptr(box)](boost::system::error_code error) {
      auto alive = weak.lock();
      if (!alive || error || alive->state() == State::ended) return;
      log::warn("sandbox", "trying again to end {}", alive->id());
      net::co_spawn(alive->home(), [self, alive]() -> Task<void> { (void)co_await self->kill(alive); }, net::detached);
    });
  });
}

void Service::arm_sample(const BoxPtr& box) {
  auto& timer = box->timers->sample;
  timer.cancel();
  if (over(box)) return;
  bool watched = box->state() == State::running && accounts_.watched(*box);
  timer.expires_after(watched ? std::chrono::milliseconds(500) : settings().sample);
  timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(box)](boost::system::error_code error) {
    if (auto alive = weak.lock(); alive && !error) net::co_spawn(alive->home(), self->sample(alive), net::detached);
  });
}

Task<void> Service::take_stock(BoxPtr box) {
  auto stats = co_await this->stats(box);
  if (!stats || over(box)) co_return;
  accounts_.charge(*box, *stats);
  note_disk(box, stats->disk_bytes);
}

// Nobody tells us of a write that failed for want of room: it is seen by what is there.
void Service::note_disk(const BoxPtr& box, uint64_t used) {
  const uint64_t most = box->record().limits.disk, left = most - std::min(most, used);
  if (most == 0 || box->state() != State::running) return;  // one that sleeps takes what its memory does
  if (left > most / 8)
    box->disk_full = false;
  else if (left <= most / 32 && !box->disk_full.exchange(true))
    record(ledger::Kind::sandbox_disk_full, box, nlohmann::json{{"used", used}, {"limit", most}}.dump());
}

Task<void> Service::sample(BoxPtr box) {
  auto self = shared_from_this();
  co_await take_stock(box);
  if (over(box)) co_return;
  if (accounts_.write(*box, settings().sample)) (void)parts_.store.touch({{box->id(), box->last_active()}});
  if (box->state() == State::running) {
    if (auto spent = accounts_.spent(*box)) co_return budget_is_spent(box, *spent);
    if (auto tasks = accounts_.spent_tasks(*box); !tasks.empty()) co_await stop_commands(box, std::move(tasks));
  }
  arm_sample(box);
}

}  // namespace isola::sandbox
