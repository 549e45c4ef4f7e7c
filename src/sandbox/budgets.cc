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
  if (spent.then == store::AtLimit::end) return time_is_up(box, EndReason::limit, spent.text());
  net::co_spawn(box->home(), hold(box, spent), net::detached);
}

// Its work stands still until somebody raises the budget. What cannot be held must not go on.
Task<void> Service::hold(BoxPtr box, Spent spent) {
  auto self = shared_from_this();
  if (box->state() != State::running) co_return;
  // Somebody may have raised it, and even have resumed it, before it is our turn.
  auto still = [self, box, commands = spent.amount == "commands"] {
    return self->accounts_.spent(*box, commands).has_value();
  };
  Result<void> held;
  if (spent.then == store::AtLimit::pause) {
    PauseRequest request;
    request.why = spent.text();
    request.still = still;
    held = co_await pause(box, request);
    if (!held && box->state() == State::running)
      log::warn("sandbox", "{} cannot be paused and is frozen: {}", box->id(), held.error().message);
  }
  if (box->state() == State::running && still()) {
    Caller nobody;
    held = co_await freeze(box, spent.text(), nobody, still);
  }
  if (box->state() != State::running || !still()) co_return arm(box);
  if (!held) {
    log::warn("sandbox", "{} cannot be held and is ended: {}", box->id(), held.error().message);
    (void)co_await kill(box, EndReason::limit, spent.text());
  }
}

// Other amounts hold it whatever happened. Commands do only where the one too many was asked for.
std::optional<Spent> Service::held_by(const BoxPtr& box) const {
  auto spent = accounts_.spent(*box, true);
  if (spent && spent->amount == "commands" && spent->text() != box->record().end_detail) return accounts_.spent(*box);
  return spent;
}

Result<void> Service::may_go_on(const BoxPtr& box) {
  {
    std::shared_lock lock(mutex_);
    if (!closed_.empty()) return fail(Code::unavailable, "no sandboxes are started here: " + closed_);
  }
  if (auto spent = held_by(box)) return fail(Code::exhausted, spent->text() + "; raise it first");
  return {};
}

// Commands of a task that has nothing left, in a sandbox that is not the task's own: they alone end.
Task<void> Service::stop_commands(BoxPtr box, std::vector<std::string> tasks) {
  for (const auto& run : box->code())
    if (std::find(tasks.begin(), tasks.end(), run->task()) != tasks.end()) run->stop("its task's budget is spent");
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

Result<store::ProjectRecord> Service::change_project(const std::string& id, store::ProjectChange change) {
  if (change.ceiling) {
    ISOLA_TRY(*change.ceiling, ceiling_text(*change.ceiling));
  }
  std::unique_lock lock(budgets_mutex_);
  ISOLA_TRY(auto project, parts_.store.change_project(id, change));
  accounts_.set_project(project.id, project.budget);
  lock.unlock();
  if (change.budget) look_sooner(project.id);
  return project;
}

Result<void> Service::reload_projects() {
  std::unique_lock lock(budgets_mutex_);
  parts_.store.forget_projects();
  ISOLA_TRY(auto projects, parts_.store.list_projects());
  for (const auto& project : projects) accounts_.set_project(project.id, project.budget);
  lock.unlock();
  for (const auto& project : projects) look_sooner(project.id);
  return {};
}

Task<Result<uint64_t>> Service::flush_ledger() {
  tell_births();
  auto said = std::make_shared<Said>();
  ISOLA_CO_CHECK(parts_.ledger.flush(Said::hear(said)));
  co_return co_await heard(said);
}

Task<Result<std::vector<ledger::Event>>> Service::ask_ledger(const std::string& project,
                                                             const ledger::EventFilter& filter) {
  auto question = [this, filter = filter]() mutable {
    filter.until = std::chrono::steady_clock::now() + kQuestionPatience;
    return parts_.ledger.query(filter);
  };
  return questions_.ask<std::vector<ledger::Event>>(project, std::move(question));
}

Task<Result<std::vector<ledger::UsageTotals>>> Service::ask_usage(const std::string& project,
                                                                  const ledger::UsageFilter& filter,
                                                                  ledger::GroupBy group) {
  auto question = [this, filter = filter, group]() mutable {
    filter.until = std::chrono::steady_clock::now() + kQuestionPatience;
    return parts_.ledger.usage(filter, group);
  };
  return questions_.ask<std::vector<ledger::UsageTotals>>(project, std::move(question));
}

Task<Result<ledger::Rotation>> Service::rotate_ledger(const std::string& project) {
  return questions_.ask<ledger::Rotation>(project, [this] { return parts_.ledger.rotate(); });
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
  auto said = std::make_shared<Said>();
  {
    std::lock_guard lock(budgets_mutex_);
    ISOLA_CO_CHECK(parts_.store.put_task(record));
    ISOLA_CO_CHECK(accounts_.set_task(record, boxes_of(project), Said::hear(said)));
  }
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
