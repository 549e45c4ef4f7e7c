// What happens when a budget is spent, and how budgets are set while sandboxes run.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <csignal>

#include "base/log.h"
#include "sandbox/said.h"
#include "sandbox/service.h"

namespace isola::sandbox {

namespace net = boost::asio;

void Service::budget_is_spent(const BoxPtr& box, const Spent& spent) {
  if (!spent.freeze) return time_is_up(box, EndReason::limit, spent.text());
  net::co_spawn(
      box->home(),
      [self = shared_from_this(), box, why = spent.text()]() -> Task<void> {
        if (box->state() != State::running) co_return;
        auto frozen = co_await self->freeze(box, why);
        if (frozen || box->state() != State::running) {
          self->arm(box);
          co_return;
        }
        // What cannot be held must not go on.
        log::warn("sandbox", "{} cannot be frozen and is ended: {}", box->id(), frozen.error().message);
        (void)co_await self->kill(box, EndReason::limit, why);
      },
      net::detached);
}

// Commands of a task that has nothing left, in a sandbox that is not the task's own: they alone end.
Task<void> Service::stop_commands(BoxPtr box, std::vector<std::string> tasks) {
  auto link = co_await this->link(box);
  if (!link) co_return;
  for (const auto& command : box->commands()) {
    if (command.ended != 0 || std::find(tasks.begin(), tasks.end(), command.task) == tasks.end()) continue;
    box->command_stopped(command.id, "its task's budget is spent");
    guest::Signal stop{command.pid, SIGKILL, guest::Target::session};
    (void)co_await (*link)->call(guest::Op::signal, guest::encode(stop));
  }
}

std::vector<BoxPtr> Service::boxes_of(const std::string& project) {
  std::shared_lock lock(mutex_);
  std::vector<BoxPtr> boxes;
  for (const auto& [id, box] : boxes_)
    if (box->project() == project) boxes.push_back(box);
  return boxes;
}

// A budget that was not there when the sandboxes' next looks were planned.
void Service::look_sooner(const std::string& project) {
  for (const auto& box : boxes_of(project)) arm(box);
}

Result<void> Service::add_project(const store::ProjectRecord& project) {
  ISOLA_CHECK(parts_.store.insert_project(project));
  accounts_.set_project(project.id, project.budget);
  return {};
}

Result<void> Service::set_project_limits(const store::ProjectRecord& project) {
  ISOLA_CHECK(parts_.store.set_project_limits(project.id, project.limits, project.budget));
  accounts_.set_project(project.id, project.budget);
  look_sooner(project.id);
  return {};
}

Task<Result<uint64_t>> Service::flush_ledger() {
  auto said = std::make_shared<Said>();
  ISOLA_CO_CHECK(parts_.ledger.flush(Said::hear(said)));
  co_return co_await heard(said);
}

Task<Result<void>> Service::record_durably(ledger::Event event) {
  auto said = std::make_shared<Said>();
  ledger::Event shown = event;
  ISOLA_CO_CHECK(parts_.ledger.append_durably(std::move(event), Said::hear(said)));
  auto written = co_await heard(said);
  if (!written) co_return std::unexpected(std::move(written).error());
  events_.publish(shown);
  co_return Result<void>();
}

Task<Result<void>> Service::set_task_budget(std::string project, std::string task, store::Budget budget) {
  if (task.empty() || task.size() > kMaxWord) co_return fail(Code::invalid, "task: 1 to 256 bytes");
  store::TaskRecord record{project, task, budget};
  ISOLA_CO_CHECK(parts_.store.put_task(record));
  auto said = std::make_shared<Said>();
  ISOLA_CO_CHECK(accounts_.set_task(record, boxes_of(project), Said::hear(said)));
  ISOLA_CO_TRY(uint64_t mark, co_await heard(said));
  if (mark > 0) {
    ledger::UsageFilter filter{.project = project, .task = task};
    filter.up_to = mark;
    ISOLA_CO_TRY(auto before, parts_.ledger.usage(filter, ledger::GroupBy::all));
    if (!before.empty()) accounts_.settle_task(project, task, before.front().used);
  }
  look_sooner(project);
  co_return Result<void>();
}

Task<Result<Service::TaskUse>> Service::task_use(std::string project, std::string task) {
  TaskUse use;
  if (auto record = parts_.store.find_task(project, task)) use.budget = record->budget;
  if (auto used = accounts_.used_by_task(project, task)) {
    use.used = *used;
    if (auto spent = accounts_.refuses(project, task); spent && spent->scope == Scope::task) use.spent = spent->amount;
    co_return use;
  }
  ISOLA_CO_TRY(uint64_t mark, co_await flush_ledger());
  (void)mark;
  ledger::UsageFilter filter{.project = project, .task = task};
  ISOLA_CO_TRY(auto before, parts_.ledger.usage(filter, ledger::GroupBy::all));
  if (!before.empty()) use.used = before.front().used;
  co_return use;
}

}  // namespace isola::sandbox
