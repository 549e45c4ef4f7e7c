// When a sandbox's time is up, and what it used until then. One timer of each kind per sandbox, on its home worker:
// nothing here walks over all of them.
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
  std::string detail = "its time was up";
  EndReason reason = EndReason::deadline;
  if (record.budget.wall_seconds > 0) {
    Millis spent = record.created + static_cast<Millis>(record.budget.wall_seconds * 1000);
    if (when == 0 || spent < when) {
      when = spent;
      reason = EndReason::limit;
      detail = "its budget of wall_seconds is spent";
    }
  }
  if (when == 0 || over(box)) return;
  timer.expires_after(left_until(when));
  timer.async_wait(
      [self = shared_from_this(), weak = std::weak_ptr(box), reason, detail](boost::system::error_code error) {
        if (auto alive = weak.lock(); alive && !error) self->time_is_up(alive, reason, detail);
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

void Service::arm_sample(const BoxPtr& box) {
  auto& timer = box->timers->sample;
  timer.cancel();
  if (over(box)) return;
  auto record = box->record();
  bool watched = record.budget.cpu_seconds > 0 || record.budget.money > 0 || record.budget.bytes_out > 0;
  timer.expires_after(watched ? std::chrono::milliseconds(500) : settings().sample);
  timer.async_wait([self = shared_from_this(), weak = std::weak_ptr(box)](boost::system::error_code error) {
    if (auto alive = weak.lock(); alive && !error) net::co_spawn(alive->home(), self->sample(alive), net::detached);
  });
}

Task<void> Service::sample(BoxPtr box) {
  auto self = shared_from_this();
  auto stats = co_await parts_.launcher->stats(box->id());
  if (stats && !over(box)) {
    charge(box, *stats);
    if (now_millis() - box->meter().written >= settings().sample.count()) {
      write_usage(box);
      (void)parts_.store.touch({{box->id(), box->last_active()}});
    }
    if (auto budget = over_budget(box); !budget.empty())
      co_return time_is_up(box, EndReason::limit, "its budget of " + budget + " is spent");
    auto project = parts_.store.find_project(box->project());
    std::string spent = project ? project_over_budget(*project) : "";
    if (!spent.empty()) co_return time_is_up(box, EndReason::limit, "its project's budget of " + spent + " is spent");
  }
  arm_sample(box);
}

// Adds what happened since the last look.
void Service::charge(const BoxPtr& box, const launcher::StatsReply& stats) {
  Meter& meter = box->meter();
  std::lock_guard lock(meter.mutex);
  Millis now = now_millis();
  Millis since = meter.at ? meter.at : box->record().created;
  double seconds = static_cast<double>(now - since) / 1000;
  if (stats.cpu_usec > meter.last.cpu_usec) meter.cpu_usec += stats.cpu_usec - meter.last.cpu_usec;
  meter.memory_byte_seconds += seconds * static_cast<double>(stats.memory_bytes + meter.last.memory_bytes) / 2;
  meter.disk_byte_seconds += seconds * static_cast<double>(stats.disk_bytes + meter.last.disk_bytes) / 2;
  meter.last = stats;
  meter.at = now;
}

void Service::write_usage(const BoxPtr& box) {
  Meter& meter = box->meter();
  auto record = box->record();
  ledger::UsageRow row;
  {
    std::lock_guard lock(meter.mutex);
    Millis from = meter.written ? meter.written : record.created;
    Millis to = record.ended ? record.ended : now_millis();
    row.project = record.project;
    row.sandbox = record.id;
    row.task = record.task;
    row.from = from;
    row.to = to;
    row.used.cpu_usec = meter.cpu_usec;
    row.used.memory_byte_seconds = meter.memory_byte_seconds;
    row.used.disk_byte_seconds = meter.disk_byte_seconds;
    row.used.commands = box->command_count - meter.commands;
    row.used.bytes_out = box->bytes_out - meter.bytes_out;
    row.used.wall_ms = static_cast<uint64_t>(std::max<Millis>(0, to - from));
    meter.total_cpu_usec += meter.cpu_usec;
    meter.total_memory += meter.memory_byte_seconds;
    meter.total_disk += meter.disk_byte_seconds;
    meter.cpu_usec = 0;
    meter.memory_byte_seconds = meter.disk_byte_seconds = 0;
    meter.commands = box->command_count;
    meter.bytes_out = box->bytes_out;
    meter.written = to;
  }
  {
    std::lock_guard lock(used_mutex_);
    auto& all = used_[row.project];
    all.cpu_usec += row.used.cpu_usec;
    all.memory_byte_seconds += row.used.memory_byte_seconds;
    all.disk_byte_seconds += row.used.disk_byte_seconds;
    all.bytes_out += row.used.bytes_out;
    all.commands += row.used.commands;
    all.wall_ms += row.used.wall_ms;
  }
  if (auto written = parts_.ledger.record_usage(row); !written)
    log::error("sandbox", "cannot write down usage: {}", written.error().message);
}

std::string Service::project_over_budget(const store::ProjectRecord& project) {
  const auto& budget = project.budget;
  if (budget == store::Budget{}) return {};
  ledger::Usage used;
  {
    std::lock_guard lock(used_mutex_);
    used = used_[project.id];
  }
  if (budget.cpu_seconds > 0 && static_cast<double>(used.cpu_usec) / 1e6 >= budget.cpu_seconds) return "cpu_seconds";
  if (budget.wall_seconds > 0 && static_cast<double>(used.wall_ms) / 1e3 >= budget.wall_seconds) return "wall_seconds";
  if (budget.commands > 0 && used.commands >= budget.commands) return "commands";
  if (budget.bytes_out > 0 && used.bytes_out >= budget.bytes_out) return "bytes_out";
  if (budget.money > 0 && ledger::price(used, settings().prices).total() >= budget.money) return "money";
  return {};
}

std::string Service::over_budget(const BoxPtr& box) {
  auto record = box->record();
  const auto& budget = record.budget;
  Meter& meter = box->meter();
  std::lock_guard lock(meter.mutex);
  double cpu_usec = static_cast<double>(meter.total_cpu_usec + meter.cpu_usec);
  if (budget.cpu_seconds > 0 && cpu_usec / 1e6 >= budget.cpu_seconds) return "cpu_seconds";
  if (budget.bytes_out > 0 && box->bytes_out >= budget.bytes_out) return "bytes_out";
  if (budget.money > 0) {
    ledger::Usage used;
    used.cpu_usec = meter.total_cpu_usec + meter.cpu_usec;
    used.memory_byte_seconds = meter.total_memory + meter.memory_byte_seconds;
    used.disk_byte_seconds = meter.total_disk + meter.disk_byte_seconds;
    used.commands = box->command_count;
    used.bytes_out = box->bytes_out;
    if (ledger::price(used, settings().prices).total() >= budget.money) return "money";
  }
  return {};
}

}  // namespace isola::sandbox
