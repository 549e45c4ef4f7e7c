// Who is there? After a restart of the server or of the launcher, the store, the living and the images are brought
// together: what was acknowledged is kept, what was under way is finished or undone.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "sandbox/image_records.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;
using nlohmann::json;

// After the launcher was lost and found: who of ours is still there?
Task<void> Service::reown() {
  auto self = shared_from_this();
  forget_pools();
  std::vector<BoxPtr> boxes;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [id, box] : boxes_) boxes.push_back(box);
  }
  for (const auto& box : boxes) {
    if (store::is_asleep(box->state()) || box->is_shut()) continue;  // their verbs find out themselves
    auto taken = co_await take_over(box);
    if (!taken && taken.error().code == Code::not_found)
      co_await found_gone(box, EndReason::boundary_failure, "it ended while the launcher was away");
    else if (!taken)
      net::co_spawn(box->home(), take_over_later(box), net::detached);
  }
}

Task<void> Service::take_over_later(BoxPtr box) {
  auto self = shared_from_this();
  for (auto pause = std::chrono::seconds(1);; pause = std::min(pause * 2, std::chrono::seconds(60))) {
    Bell never;
    (void)co_await never.wait_for(never.ticket(), pause);
    if (box->state() == State::ended || box->state() == State::ending || store::is_asleep(box->state())) co_return;
    auto taken = co_await take_over(box);
    if (!taken && taken.error().code == Code::not_found)
      co_return co_await found_gone(box, EndReason::host_restart, "it ended while nobody could look after it");
    if (!taken) log::warn("sandbox", "{} could not be taken over: {}", box->id(), taken.error().message);
    if (taken) co_return co_await relink(box);
  }
}

// The store knew it before the ledger did, and a server that was killed between the two did not come to write it.
Result<void> Service::note_birth(const BoxPtr& box) {
  ledger::EventFilter any{.sandbox = box->id(), .kind_prefix = "sandbox.", .limit = 1};
  ISOLA_TRY(auto told, parts_.ledger.query(any));
  if (!told.empty()) return {};
  auto record = box->record();
  json data = birth_data(record);
  data["created"] = record.created;  // the entry itself is of now
  this->record(ledger::Kind::sandbox_created, box, data.dump(), Caller(record.made_by, record.actor));
  return {};
}

// Several at a time: each waits for the launcher, and a server with a thousand of them is to be ready in seconds.
struct Service::TakingBack {
  std::mutex mutex;
  std::vector<Left> left;
  size_t busy = 0;
  Result<void> done;
  Bell bell;
};

Task<Result<void>> Service::take_back(std::vector<Left> left) {
  auto work = std::make_shared<TakingBack>();
  work->busy = std::min<size_t>(left.size(), 16);
  work->left = std::move(left);
  for (size_t i = 0, count = work->busy; i < count; ++i)
    net::co_spawn(parts_.next_worker(), take_back_some(work), net::detached);
  for (;;) {
    uint64_t ticket = work->bell.ticket();
    {
      std::lock_guard lock(work->mutex);
      if (work->busy == 0) co_return work->done;
    }
    co_await work->bell.wait(ticket);
  }
}

Task<void> Service::take_back_some(std::shared_ptr<TakingBack> work) {
  auto self = shared_from_this();
  for (;;) {
    Left next;
    {
      std::lock_guard lock(work->mutex);
      if (work->left.empty() || !work->done) {
        --work->busy;
        break;
      }
      next = std::move(work->left.back());
      work->left.pop_back();
    }
    auto taken = co_await take_one_back(std::move(next));
    std::lock_guard lock(work->mutex);
    if (!taken && work->done) work->done = taken;
  }
  work->bell.ring();
}

// Fails only where nothing can go on: the store or the ledger.
Task<Result<void>> Service::take_one_back(Left left) {
  auto& record = left.record;
  // Written down with each sample only: a server that was killed may not have known of its last use.
  Millis sampled = std::chrono::duration_cast<std::chrono::milliseconds>(settings().sample).count();
  record.last_active = std::max(record.last_active, std::min(now_millis(), record.last_active + sampled));
  auto box = new_box(parts_.next_worker(), record);
  screen_if_granted(box);
  box->set_patience(settings().patience);
  ISOLA_CO_CHECK(accounts_.begin_box(*box));
  ISOLA_CO_CHECK(note_birth(box));
  accounts_.set_frozen(*box, record.state == State::frozen);
  box->may_be_paused = true;
  box->unasked = true;
  box->lacks_certificate = record.state == State::frozen;
  add(box);
  // Nobody waits for a one-shot run any more, and nobody would ever wake it.
  if (record.one_shot && store::is_asleep(record.state)) {
    (void)co_await kill(box, EndReason::host_restart, "its server was restarted before it was thrown away");
    co_return Result<void>();
  }
  if (!record.image.empty()) {
    auto known_again = co_await take_in_sleeper(box, left.there);
    if (!known_again) log::error("sandbox", "{} could not be taken over: {}", box->id(), known_again.error().message);
    (void)publish(box);
    arm(box);
    co_return Result<void>();
  }
  Result<void> taken = fail(Code::not_found, "it is not there");
  // Half made: nobody was told of it, and what it is like inside nobody knows.
  if (left.there && record.state == State::creating) {
    (void)co_await kill(box, EndReason::host_restart, "its server died while it was being made");
    (void)publish(box);
    co_return Result<void>();
  }
  if (left.there) taken = co_await take_over(box);
  if (!taken && taken.error().code == Code::not_found) {
    co_await found_gone(box, EndReason::host_restart, "it ended while the server was away");
    (void)publish(box);
    co_return Result<void>();
  }
  // One that is in a bad way keeps nobody from the others.
  if (!taken) {
    log::error("sandbox", "{} could not be taken over and is tried again: {}", box->id(), taken.error().message);
    net::co_spawn(box->home(), take_over_later(box), net::detached);
  } else if (record.state == State::running) {
    net::co_spawn(box->home(), relink(box), net::detached);
  }
  (void)publish(box);
  arm(box);
  co_return Result<void>();
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
  // Nobody waits for a one-shot run any more once its server is gone.
  if (record.one_shot && !ready_) {
    record.state = State::ending;
    record.end_reason = EndReason::host_restart;
    record.end_detail = "its server was restarted before it was thrown away";
  }
  if (record.state == State::ending) {
    net::co_spawn(
        box->home(),
        [self = shared_from_this(), box, reason = record.end_reason, detail = record.end_detail]() -> Task<void> {
          (void)co_await self->kill(box, reason, detail);
        },
        net::detached);
    co_return Result<void>();
  }
  Box::Turn turn = co_await box->turn();
  record = box->record();
  if (record.state == State::frozen) ISOLA_CO_CHECK(co_await parts_.launcher->freeze(box->id()));
  // One whose server died between stopping it and writing that down. Where an image is being made, that sees to it.
  if (record.state == State::running) {
    auto thawed = co_await parts_.launcher->thaw(box->id());
    if (!thawed && thawed.error().code != Code::not_found && thawed.error().code != Code::unavailable) co_return thawed;
  }
  // What is written down and what is in force are the same again, whoever died between the two.
  auto renewed = co_await renew_network(box, false);
  // It is just ending: the word of that is on its way.
  if (!renewed && renewed.error().code != Code::not_found) co_return renewed;
  co_return Result<void>();
}

// An image that a pause made and that nobody was told of.
Task<Result<std::optional<launcher::ImageSummary>>> Service::untold_pause(std::string id) {
  ISOLA_CO_TRY(auto images, co_await parts_.launcher->images());
  std::optional<launcher::ImageSummary> newest;
  for (auto& image : images) {
    if (image.sandbox != id || image.verb != "pause" || parts_.store.find_image(image.id)) continue;
    if (!newest || image.created >= newest->created) newest = std::move(image);
  }
  co_return newest;
}

// It is not there any more, and nobody saw how it went: paused, perhaps; if it was to end, then for that reason.
Task<void> Service::found_gone(BoxPtr box, EndReason otherwise, std::string detail) {
  auto self = shared_from_this();
  auto record = box->record();
  if (record.state == State::ended || store::is_asleep(record.state)) co_return;
  // An earlier server may have died between the ledger and the store: then the ledger knows how it went.
  ledger::EventFilter filter{.sandbox = record.id, .kind_prefix = std::string(to_string(ledger::Kind::sandbox_ended))};
  auto told = ready_ ? Result<std::vector<ledger::Event>>() : parts_.ledger.query(filter);
  if (told && !told->empty() && box->claim_end()) {
    json data = json::parse(told->back().data, nullptr, false);
    auto word = [&](const char* name) { return data.is_object() ? data.value(name, std::string()) : std::string(); };
    box->change([&](auto& r) {
      r.state = State::ending;
      r.end_reason = parse_end_reason(word("reason")).value_or(otherwise);
      r.end_detail = word("detail");
      r.ended = told->back().time;
    });
    co_return bury(box);
  }
  if (record.state == State::ending) co_return finish(box, record.end_reason, record.end_detail, nullptr);
  auto image = co_await untold_pause(record.id);
  // Several may look at once: whoever asked for the pause, whoever heard of the end, whoever found the launcher again.
  // What the first of them has found is the answer, and the image is not untold any more.
  if (box->state() != record.state) co_return;
  if (!image) log::warn("sandbox", "{}: its images cannot be looked at: {}", record.id, image.error().message);
  if (image && *image) {
    auto found = image_record(record, **image, store::ImageKind::pause);
    PauseRequest request;
    request.why = "it was being paused when its server or launcher went";
    if (fall_asleep(box, std::move(found), request, nullptr)) co_return;
  }
  finish(box, otherwise, detail, nullptr);
}

Task<void> Service::found_awake(BoxPtr box) {
  auto self = shared_from_this();
  {
    Box::Turn turn = co_await box->turn();
    if (!store::is_asleep(box->state())) co_return;
    // Nothing is taken from one that only seemed to live: it may have ended since somebody looked.
    auto owned = co_await parts_.launcher->own(box->id());
    if (!owned) co_return;
    auto given_up = co_await end_given_up(box);
    if (!given_up) log::warn("sandbox", "{} cannot be ended: {}", box->id(), given_up.error().message);
    if (!given_up || *given_up) co_return;
    // Whoever resumed it may not have come to that any more.
    Result<void> dropped;
    if (!box->record().keep_grants) dropped = co_await drop_grants(box);
    if (!dropped) log::warn("sandbox", "{} keeps its grants: {}", box->id(), dropped.error().message);
    if (!dropped) co_return;  // the sweep finds it again
  }
  auto taken = co_await take_over(box);
  Box::Turn turn = co_await box->turn();
  State state = box->state();
  if (!store::is_asleep(state)) co_return;
  if (taken) taken = awake(box, state, Birth::resumed, std::nullopt);
  if (!taken && taken.error().code != Code::not_found)
    log::warn("sandbox", "{} could not be taken over: {}", box->id(), taken.error().message);
}

// At the start, of a sandbox that the store says to be asleep or on its way back.
Task<Result<void>> Service::take_in_sleeper(BoxPtr box, bool alive) {
  auto record = box->record();
  if (alive) {
    auto given_up = co_await end_given_up(box);  // what fails is tried again by the sweep
    if (!given_up) log::warn("sandbox", "{} cannot be ended: {}", box->id(), given_up.error().message);
    alive = given_up && !*given_up;
  }
  if (alive) {
    auto use = box->use();  // its idling begins anew
    // It was resumed, and nobody was told; nor may its grants have been taken away yet.
    if (!record.keep_grants) ISOLA_CO_CHECK(co_await drop_grants(box));
    auto taken = co_await take_over(box);
    if (taken) ISOLA_CO_CHECK(awake(box, record.state, Birth::resumed, std::nullopt));
    if (taken) net::co_spawn(box->home(), relink(box), net::detached);
    if (taken || taken.error().code != Code::not_found) co_return taken;
  }
  if (!store::is_asleep(record.state)) {
    auto image = parts_.store.find_image(record.image);
    State to = image && !image->memory ? State::stopped : State::paused;
    ISOLA_CO_CHECK(parts_.store.set_state(record.id, to));
    box->change([&](auto& r) { r.state = to; });
  }
  accounts_.set_frozen(*box, true);
  co_return Result<void>();
}

}  // namespace isola::sandbox
