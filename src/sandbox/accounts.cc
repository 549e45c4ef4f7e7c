#include "sandbox/accounts.h"

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
  if (before.empty() || before.front().samples == 0) return {};
  std::lock_guard lock(mutex_);
  Meter& meter = box.meter();
  meter.total = before.front().used;
  // The kernel's counter went on while nobody looked: the next charge finds the difference.
  meter.last.cpu_usec = meter.total.cpu_usec - std::min(meter.total.cpu_usec, box.record().cpu_before);
  meter.at = meter.written = before.front().to;
  return {};
}

Result<void> Accounts::set_task(const store::TaskRecord& task, const std::vector<BoxPtr>& living,
                                ledger::ChainWriter::Done marked) {
  std::unique_lock lock(mutex_);
  std::string name = slot(task.project, task.task);
  bool counted = tasks_.contains(name), wanted = task.budget != store::Budget{};
  if (!wanted)
    tasks_.erase(name);
  else
    tasks_[name].budget = task.budget;
  if (counted || !wanted) {
    lock.unlock();
    marked(uint64_t{0});
    return {};
  }
  // Rows are handed to the ledger under this mutex: what is before the mark was not counted here, all after it is.
  for (const auto& box : living) write_rows(*box, box->record(), now_millis());
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
  auto record = box.record();
  std::lock_guard lock(mutex_);
  Meter& meter = box.meter();
  Millis now = now_millis();
  Millis passed = std::max<Millis>(0, now - (meter.at ? meter.at : record.created));
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
  if (count == 0) return add(box, record.task, used);
  for (const auto& [task, commands] : meter.running) add(box, task, part_of(used, index++, count));
}

void Accounts::add_bytes(Box& box, uint64_t bytes) {
  std::string own = box.record().task;
  std::lock_guard lock(mutex_);
  const auto& running = box.meter().running;
  uint64_t index = 0;
  ledger::Usage used{.bytes_out = bytes};
  if (running.empty()) return add(box, own, used);
  for (const auto& [task, commands] : running) add(box, task, part_of(used, index++, running.size()));
}

void Accounts::set_frozen(Box& box, bool frozen) {
  std::lock_guard lock(mutex_);
  box.meter().frozen = frozen;
}

void Accounts::charge_storage(const std::string& project, const std::string& image, uint64_t bytes, Millis from,
                              Millis to) {
  ledger::UsageRow row{.project = project, .sandbox = image, .task = {}, .from = from, .to = to};
  row.used.disk_byte_seconds = static_cast<double>(bytes) * static_cast<double>(to - from) / 1000;
  std::lock_guard lock(mutex_);
  projects_[project].used += row.used;
  if (auto written = ledger_.record_usage(row); !written)
    log::error("sandbox", "cannot write down usage: {}", written.error().message);
}

void Accounts::reborn(Box& box) {
  std::lock_guard lock(mutex_);
  box.meter().last = {};
  box.meter().at = now_millis();
  box.meter().frozen = false;
}

std::expected<void, Spent> Accounts::take_command(Box& box, const std::string& task) {
  auto budget = box.record().budget;
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
  return {};
}

void Accounts::give_back_command(Box& box, const std::string& task) {
  std::lock_guard lock(mutex_);
  auto less = [](ledger::Usage& used) {
    if (used.commands > 0) --used.commands;
  };
  less(box.meter().total);
  less(box.meter().fresh[task]);
  less(projects_[box.project()].used);
  if (auto at = tasks_.find(slot(box.project(), task)); at != tasks_.end()) less(at->second.used);
}

void Accounts::command_begins(Box& box, const std::string& task) {
  auto record = box.record();
  std::lock_guard lock(mutex_);
  ++box.meter().running[task];
  // What is counted exactly must not be forgotten by a server that is killed before the next sample.
  const Account* account = find_task(box.project(), task);
  if (record.budget.commands > 0 || projects_[box.project()].budget.commands > 0 ||
      (account && account->budget.commands > 0))
    write_rows(box, record, now_millis());
}

void Accounts::command_ends(Box& box, const std::string& task) {
  std::lock_guard lock(mutex_);
  auto& running = box.meter().running;
  auto at = running.find(task);
  if (at != running.end() && --at->second == 0) running.erase(at);
}

void Accounts::write_rows(Box& box, const store::SandboxRecord& record, Millis to) {
  box.tell_birth();
  Meter& meter = box.meter();
  Millis from = meter.written ? meter.written : record.created;
  for (const auto& [task, used] : meter.fresh) {
    if (used == ledger::Usage{}) continue;
    ledger::UsageRow row{.project = record.project, .sandbox = record.id, .task = task, .from = from, .to = to};
    row.used = used;
    if (auto written = ledger_.record_usage(row); !written)
      log::error("sandbox", "cannot write down usage: {}", written.error().message);
  }
  meter.fresh.clear();
  meter.written = to;
}

bool Accounts::write(Box& box, std::chrono::milliseconds age) {
  auto record = box.record();
  Millis to = record.ended ? record.ended : now_millis();
  std::lock_guard lock(mutex_);
  if (to - (box.meter().written ? box.meter().written : record.created) < age.count()) return false;
  write_rows(box, record, to);
  return true;
}

// ---- looking --------------------------------------------------------------------------------------------------------

bool Accounts::watched(const Box& box) const {
  auto record = box.record();
  auto timed = [](const store::Budget& b) {
    return b.cpu_seconds > 0 || b.wall_seconds > 0 || b.bytes_out > 0 || b.money > 0;
  };
  if (timed(record.budget)) return true;
  std::lock_guard lock(mutex_);
  if (auto at = projects_.find(record.project); at != projects_.end() && timed(at->second.budget)) return true;
  if (const Account* own = find_task(record.project, record.task); own && timed(own->budget)) return true;
  for (const auto& [task, commands] : box.meter().running)
    if (const Account* account = find_task(record.project, task); account && timed(account->budget)) return true;
  return false;
}

std::optional<Spent> Accounts::spent(const Box& box, bool with_commands) const {
  auto record = box.record();
  std::lock_guard lock(mutex_);
  if (auto amount = over(record.budget, box.meter().total, with_commands); !amount.empty())
    return Spent{Scope::sandbox, amount, record.budget.at_limit};
  if (const Account* own = find_task(record.project, record.task)) {
    if (auto amount = over(own->budget, own->used, with_commands); !amount.empty())
      return Spent{Scope::task, amount, own->budget.at_limit};
  }
  if (auto at = projects_.find(record.project); at != projects_.end()) {
    if (auto amount = over(at->second.budget, at->second.used, with_commands); !amount.empty())
      return Spent{Scope::project, amount, at->second.budget.at_limit};
  }
  return std::nullopt;
}

std::vector<std::string> Accounts::spent_tasks(const Box& box) const {
  auto record = box.record();
  std::lock_guard lock(mutex_);
  std::vector<std::string> all;
  for (const auto& [task, commands] : box.meter().running) {
    const Account* account = task == record.task ? nullptr : find_task(record.project, task);
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
