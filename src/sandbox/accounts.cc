#include "sandbox/accounts.h"

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace isola::sandbox {

namespace {

// Part `index` of `count` equal ones; whole numbers lose nothing: the first parts get the rest.
ledger::Usage part_of(const ledger::Usage& whole, uint64_t index, uint64_t count) {
  auto share = [&](uint64_t amount) { return amount / count + (index < amount % count ? 1 : 0); };
  auto parts = static_cast<double>(count);
  return {.cpu_usec = share(whole.cpu_usec),
          .memory_byte_seconds = whole.memory_byte_seconds / parts,
          .disk_byte_seconds = whole.disk_byte_seconds / parts,
          .bytes_out = share(whole.bytes_out),
          .commands = 0,
          .wall_ms = share(whole.wall_ms)};
}

const ledger::Usage kCommand{.commands = 1};

Millis created_of(const Box& box) {
  return box.of_record([](const auto& r) { return r.created; });
}
store::Budget budget_of(const Box& box) {
  return box.of_record([](const auto& r) { return r.budget; });
}

void drop_taken(Meter& meter, const std::string& task) {
  auto at = meter.taken.find(task);
  if (at != meter.taken.end() && --at->second == 0) meter.taken.erase(at);
}

}  // namespace

std::string Spent::text() const {
  std::string whose = scope == Scope::sandbox ? "its" : scope == Scope::task ? "its task's" : "its project's";
  return whose + " budget of " + amount + " is spent";
}

std::string Accounts::over(const store::Budget& budget, const ledger::Usage& used, bool with_commands) const {
  if (budget.cpu_seconds > 0 && static_cast<double>(used.cpu_usec) / 1e6 >= budget.cpu_seconds) return "cpu_seconds";
  if (budget.wall_seconds > 0 && static_cast<double>(used.wall_ms) / 1e3 >= budget.wall_seconds) return "wall_seconds";
  if (budget.bytes_out > 0 && used.bytes_out >= budget.bytes_out) return "bytes_out";
  if (budget.money > 0 && ledger::price(used, prices_).total() >= budget.money) return "money";
  if (with_commands && budget.commands > 0 && used.commands >= budget.commands) return "commands";
  return {};
}

const Accounts::Account* Accounts::find_task(const std::string& project, const std::string& task) const {
  auto at = task.empty() ? tasks_.end() : tasks_.find(slot(project, task));
  return at == tasks_.end() ? nullptr : &at->second;
}

// ---- budgets --------------------------------------------------------------------------------------------------------

void Accounts::set_prices(ledger::PriceSheet prices) {
  std::lock_guard lock(mutex_);
  prices_ = std::move(prices);
}

void Accounts::set_project(const std::string& project, const store::Budget& budget) {
  std::lock_guard lock(mutex_);
  projects_[project].budget = budget;
}

void Accounts::begin_project(const std::string& project, const ledger::Usage& before) {
  std::lock_guard lock(mutex_);
  projects_[project].used = before;
}

Result<void> Accounts::begin_task(const store::TaskRecord& task) {
  ISOLA_TRY(auto before, ledger_.usage({.project = task.project, .task = task.task}, ledger::GroupBy::all));
  std::lock_guard lock(mutex_);
  tasks_[slot(task.project, task.task)] = {task.budget, before.empty() ? ledger::Usage{} : before.front().used};
  return {};
}

Result<void> Accounts::begin_box(Box& box) {
  ISOLA_TRY(auto before, ledger_.usage({.sandbox = box.id()}, ledger::GroupBy::all));
  ISOLA_TRY(auto told, told_since(box));
  std::lock_guard lock(mutex_);
  for (const auto& [task, used] : told) add(box, task, used);
  if (before.empty() || before.front().samples == 0) return {};
  Meter& meter = box.meter();
  meter.total += before.front().used;
  // The kernel's counter went on while nobody looked: the next charge finds the difference.
  meter.last.cpu_usec =
      meter.total.cpu_usec - std::min(meter.total.cpu_usec, box.of_record([](const auto& r) { return r.cpu_before; }));
  meter.at = meter.written = before.front().to;
  return {};
}

Result<std::map<std::string, ledger::Usage>> Accounts::told_since(const Box& box) {
  std::map<std::string, ledger::Usage> told;
  // Of most the newest sample is near: a server that starts asks for each.
  ledger::EventFilter filter{.sandbox = box.id(), .limit = 16, .newest_first = true};
  for (;;) {
    ISOLA_TRY(auto events, ledger_.query(filter));
    for (const auto& event : events) {
      using ledger::Kind;
      if (event.kind == Kind::usage_sample) return told;
      bool command = event.kind == Kind::command_started;
      if (!command && event.kind != Kind::egress_allowed && event.kind != Kind::egress_lost) continue;
      auto data = nlohmann::json::parse(event.data, nullptr, false);
      if (!data.is_object()) continue;
      if (command && data.value("counted", true)) ++told[event.task].commands;
      if (command) continue;
      auto tasks = data.value("tasks", std::vector<std::string>(1, event.task));
      const ledger::Usage used{.bytes_out = data.value("bytes_out", uint64_t{0})};
      for (size_t i = 0; i < tasks.size(); ++i) told[tasks[i]] += part_of(used, i, tasks.size());
    }
    if (!ledger::goes_on(events, filter)) return told;
    filter.before = events.back().seq;
    filter.limit = 1000;
  }
}

// A budget that is changed or taken away needs nothing of the ledger.
bool Accounts::counts_anew(const store::TaskRecord& task) {
  std::lock_guard lock(mutex_);
  const std::string name = slot(task.project, task.task);
  if (task.budget == store::Budget{}) {
    tasks_.erase(name);
    return false;
  }
  auto at = tasks_.find(name);
  if (at == tasks_.end()) return true;
  at->second.budget = task.budget;
  return false;
}

Result<void> Accounts::set_task(const store::TaskRecord& task, const std::vector<BoxPtr>& living,
                                ledger::ChainWriter::Done marked) {
  if (!counts_anew(task)) {
    marked(uint64_t{0});
    return {};
  }
  // Rows are handed to the ledger by whoever has the pen: what is before the mark was not counted here, all after it
  // is.
  std::lock_guard pen(pen_);
  for (const auto& box : living) box->tell_birth();
  std::vector<std::vector<ledger::UsageRow>> rows;
  {
    std::lock_guard lock(mutex_);
    Account& account = tasks_[slot(task.project, task.task)];
    account.budget = task.budget;
    for (const auto& box : living) {
      rows.push_back(take_rows(*box, now_millis()));
      if (auto at = box->meter().taken.find(task.task); at != box->meter().taken.end())
        account.used.commands += at->second;  // in no row yet
    }
  }
  for (const auto& of_one : rows) write_rows(of_one);
  return ledger_.flush(std::move(marked));
}

void Accounts::settle_task(const std::string& project, const std::string& task, const ledger::Usage& before) {
  std::lock_guard lock(mutex_);
  if (auto at = tasks_.find(slot(project, task)); at != tasks_.end()) at->second.used += before;
}

std::optional<ledger::Usage> Accounts::used_by_task(const std::string& project, const std::string& task) const {
  std::lock_guard lock(mutex_);
  const Account* account = find_task(project, task);
  return account ? std::optional(account->used) : std::nullopt;
}

ledger::Usage Accounts::used_by(const Box& box) const {
  std::lock_guard lock(mutex_);
  return box.meter().total;
}

// ---- amounts --------------------------------------------------------------------------------------------------------

void Accounts::add(Box& box, const std::string& task, const ledger::Usage& used) {
  Meter& meter = box.meter();
  meter.total += used;
  meter.fresh[task] += used;
  projects_[box.project()].used += used;
  if (auto at = task.empty() ? tasks_.end() : tasks_.find(slot(box.project(), task)); at != tasks_.end())
    at->second.used += used;
}

void Accounts::charge(Box& box, const launcher::StatsReply& stats) {
  const auto [created, own] = box.of_record([](const auto& r) { return std::pair(r.created, r.task); });
  std::lock_guard lock(mutex_);
  Meter& meter = box.meter();
  Millis now = now_millis();
  Millis passed = std::max<Millis>(0, now - (meter.at ? meter.at : created));
  double seconds = static_cast<double>(passed) / 1000;
  ledger::Usage used;
  if (stats.cpu_usec > meter.last.cpu_usec) used.cpu_usec = stats.cpu_usec - meter.last.cpu_usec;
  used.memory_byte_seconds = seconds * static_cast<double>(stats.memory_bytes + meter.last.memory_bytes) / 2;
  used.disk_byte_seconds = seconds * static_cast<double>(stats.disk_bytes + meter.last.disk_bytes) / 2;
  if (!meter.frozen) used.wall_ms = static_cast<uint64_t>(passed);
  uint64_t cpu_seen = std::max(stats.cpu_usec, meter.last.cpu_usec);
  meter.last = stats;
  meter.last.cpu_usec = cpu_seen;
  meter.at = now;
  uint64_t count = meter.running.size(), index = 0;
  if (count == 0) return add(box, own, used);
  for (const auto& [task, commands] : meter.running) add(box, task, part_of(used, index++, count));
}

Result<void> Accounts::add_bytes(Box& box, uint64_t bytes, const std::vector<std::string>& tasks,
                                 const std::function<Result<void>()>& tell) {
  std::string own = box.task();
  std::lock_guard pen(pen_);
  ISOLA_CHECK(tell());
  std::lock_guard lock(mutex_);
  const ledger::Usage used{.bytes_out = bytes};
  if (tasks.empty()) add(box, own, used);
  for (size_t i = 0; i < tasks.size(); ++i) add(box, tasks[i], part_of(used, i, tasks.size()));
  return {};
}

void Accounts::set_frozen(Box& box, bool frozen) {
  std::lock_guard lock(mutex_);
  box.meter().frozen = frozen;
}

void Accounts::charge_storage(const std::string& project, const std::string& image, uint64_t bytes, Millis from,
                              Millis to) {
  ledger::UsageRow row{.project = project, .sandbox = image, .task = {}, .from = from, .to = to};
  row.used.disk_byte_seconds = static_cast<double>(bytes) * static_cast<double>(to - from) / 1000;
  {
    std::lock_guard lock(mutex_);
    projects_[project].used += row.used;
  }
  write_rows({row});
}

void Accounts::reborn(Box& box) {
  std::lock_guard lock(mutex_);
  box.meter().last = {};
  box.meter().at = now_millis();
  box.meter().frozen = false;
}

uint64_t Accounts::oom_kills(const Box& box) const {
  std::lock_guard lock(mutex_);
  return box.meter().last.oom_kills;
}

void Accounts::set_oom_kills(Box& box, uint64_t count) {
  std::lock_guard lock(mutex_);
  box.meter().last.oom_kills = count;
}

std::expected<void, Spent> Accounts::take_command(Box& box, const std::string& task) {
  const auto budget = budget_of(box);
  std::lock_guard lock(mutex_);
  auto none_left = [](const store::Budget& of, const ledger::Usage& used) {
    return of.commands > 0 && used.commands >= of.commands;
  };
  if (none_left(budget, box.meter().total)) return std::unexpected(Spent{Scope::sandbox, "commands", budget.at_limit});
  if (const Account* account = find_task(box.project(), task)) {
    if (auto amount = over(account->budget, account->used, true); !amount.empty())
      return std::unexpected(Spent{Scope::task, amount, account->budget.at_limit});
  }
  const Account& project = projects_[box.project()];
  if (none_left(project.budget, project.used))
    return std::unexpected(Spent{Scope::project, "commands", project.budget.at_limit});
  add(box, task, kCommand);
  ++box.meter().taken[task];
  return {};
}

void Accounts::give_back_command(Box& box, const std::string& task) {
  std::lock_guard lock(mutex_);
  drop_taken(box.meter(), task);
  auto less = [](ledger::Usage& used) {
    if (used.commands > 0) --used.commands;
  };
  less(box.meter().total);
  less(box.meter().fresh[task]);
  less(projects_[box.project()].used);
  if (auto at = tasks_.find(slot(box.project(), task)); at != tasks_.end()) less(at->second.used);
}

void Accounts::tell_start(Box& box, const std::string& task, const std::function<void()>& tell) {
  std::lock_guard pen(pen_);
  tell();
  std::lock_guard lock(mutex_);
  drop_taken(box.meter(), task);
}

void Accounts::tell_late_start(Box& box, const std::string& task, const std::function<void()>& tell) {
  std::lock_guard pen(pen_);
  tell();
  std::lock_guard lock(mutex_);
  add(box, task, kCommand);
}

void Accounts::command_begins(Box& box, const std::string& task) {
  std::lock_guard lock(mutex_);
  ++box.meter().running[task];
}

void Accounts::command_ends(Box& box, const std::string& task) {
  std::lock_guard lock(mutex_);
  auto& running = box.meter().running;
  auto at = running.find(task);
  if (at != running.end() && --at->second == 0) running.erase(at);
}

std::vector<ledger::UsageRow> Accounts::take_rows(Box& box, Millis to) {
  Meter& meter = box.meter();
  Millis from = meter.written ? meter.written : created_of(box);
  std::vector<ledger::UsageRow> rows;
  for (const auto& [task, used] : meter.fresh) {
    ledger::UsageRow row{.project = box.project(), .sandbox = box.id(), .task = task, .from = from, .to = to};
    row.used = used;
    if (auto at = meter.taken.find(task); at != meter.taken.end()) row.used.commands -= at->second;
    if (row.used != ledger::Usage{}) rows.push_back(std::move(row));
  }
  meter.fresh.clear();
  for (const auto& [task, commands] : meter.taken) meter.fresh[task].commands = commands;
  meter.written = to;
  return rows;
}

void Accounts::write_rows(const std::vector<ledger::UsageRow>& rows) {
  if (auto written = ledger_.record_usage(rows); !written)
    log::error("sandbox", "cannot write down usage: {}", written.error().message);
}

bool Accounts::write(Box& box, std::chrono::milliseconds age) {
  auto moment = [&] {
    const Millis ended = box.of_record([](const auto& r) { return r.ended; });
    return ended ? ended : now_millis();
  };
  auto is_due = [&] {
    std::lock_guard lock(mutex_);
    return moment() - (box.meter().written ? box.meter().written : created_of(box)) >= age.count();
  };
  if (!is_due()) return false;  // before anything that can wait
  std::lock_guard pen(pen_);
  box.tell_birth();
  std::vector<ledger::UsageRow> rows;
  {
    std::lock_guard lock(mutex_);
    rows = take_rows(box, moment());
  }
  write_rows(rows);
  return true;
}

// ---- looking --------------------------------------------------------------------------------------------------------

bool Accounts::watched(const Box& box) const {
  const auto [budget, task_of_its_own] = box.of_record([](const auto& r) { return std::pair(r.budget, r.task); });
  auto timed = [](const store::Budget& b) {
    return b.cpu_seconds > 0 || b.wall_seconds > 0 || b.bytes_out > 0 || b.money > 0;
  };
  if (timed(budget)) return true;
  std::lock_guard lock(mutex_);
  if (auto at = projects_.find(box.project()); at != projects_.end() && timed(at->second.budget)) return true;
  if (const Account* own = find_task(box.project(), task_of_its_own); own && timed(own->budget)) return true;
  for (const auto& [task, commands] : box.meter().running)
    if (const Account* account = find_task(box.project(), task); account && timed(account->budget)) return true;
  return false;
}

std::optional<Spent> Accounts::spent(const Box& box, bool with_commands) const {
  const auto [budget, task] = box.of_record([](const auto& r) { return std::pair(r.budget, r.task); });
  std::lock_guard lock(mutex_);
  if (auto amount = over(budget, box.meter().total, with_commands); !amount.empty())
    return Spent{Scope::sandbox, amount, budget.at_limit};
  if (const Account* own = find_task(box.project(), task)) {
    if (auto amount = over(own->budget, own->used, with_commands); !amount.empty())
      return Spent{Scope::task, amount, own->budget.at_limit};
  }
  if (auto at = projects_.find(box.project()); at != projects_.end()) {
    if (auto amount = over(at->second.budget, at->second.used, with_commands); !amount.empty())
      return Spent{Scope::project, amount, at->second.budget.at_limit};
  }
  return std::nullopt;
}

std::vector<std::string> Accounts::spent_tasks(const Box& box) const {
  const std::string own = box.task();
  std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [task, commands] : box.meter().running) {
    const Account* account = task == own ? nullptr : find_task(box.project(), task);
    if (account && !over(account->budget, account->used, false).empty()) all.push_back(task);
  }
  return all;
}

std::optional<Spent> Accounts::refuses(const std::string& project, const std::string& task) const {
  std::lock_guard lock(mutex_);
  if (const Account* account = find_task(project, task)) {
    if (auto amount = over(account->budget, account->used, true); !amount.empty())
      return Spent{Scope::task, amount, account->budget.at_limit};
  }
  if (auto at = projects_.find(project); at != projects_.end()) {
    if (auto amount = over(at->second.budget, at->second.used, true); !amount.empty())
      return Spent{Scope::project, amount, at->second.budget.at_limit};
  }
  return std::nullopt;
}

}  // namespace isola::sandbox
