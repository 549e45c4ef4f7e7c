// When a sandbox's time is up, and when to look at what it used. One timer of each kind per sandbox, on its home
// worker: nothing here walks over all of them.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/dispatch.hpp>

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

}  // namespace

void Service::arm(const BoxPtr& box) {
  net::dispatch(box->home(), [self = shared_from_this(), box] {
    self->arm_deadline(box);
    self->arm_idle(box);
    self->arm_sample(box);
  });
}

void Service::arm_deadline(const BoxPtr& box) {
  auto& timer = box->timers->deadline;
  timer.cancel();
  auto record = box->record();
  Millis when = record.lifetime.deadline;
  if (when == 0 || over(box)) return;
  timer.expires_after(left_until(when));
  timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(box)](boost::system::error_code error) {
    if (auto alive = weak.lock(); alive && !error) self->time_is_up(alive, EndReason::deadline, "its time was up");
  });
}

void Service::arm_idle(const BoxPtr& box) {
  auto& timer = box->timers->idle;
  timer.cancel();
  Millis limit = box->record().lifetime.idle_limit;
  if (limit == 0 || over(box)) return;
  // Activity only notes the time; this looks again when the limit could have been reached.
  Millis from = box->in_use() ? now_millis() : box->last_active();
  timer.expires_after(left_until(from + limit));
  timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(box), limit](boost::system::error_code error) {
    auto alive = weak.lock();
    if (!alive || error) return;
    if (!alive->in_use() && now_millis() - alive->last_active() >= limit)
      return self->time_is_up(alive, EndReason::idle, "nobody used it for its idle limit");
    self->arm_idle(alive);
  });
}

void Service::time_is_up(const BoxPtr& box, EndReason reason, const std::string& detail) {
  if (over(box)) return;
  net::co_spawn(
      box->home(),
      [self = shared_from_this(), box, reason, detail]() -> Task<void> {
        (void)co_await self->kill(box, reason, detail);
      },
      net::detached);
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
  auto stats = co_await parts_.launcher->stats(box->id());
  if (stats && !over(box)) accounts_.charge(*box, *stats);
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
