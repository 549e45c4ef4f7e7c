// Who used what, and which budget is spent: of each sandbox, of each task that has a budget, of each project.
//
//   accounts.charge(*box, stats);                    // what happened since the last look
//   ISOLA_CHECK(accounts.take_command(*box, task));  // exhausted: the budget that a command more would exceed
//   if (auto spent = accounts.spent(*box)) …         // end, freeze or pause it, because of spent->text()
//   accounts.write(*box);                            // rows into the ledger
//
// What a sandbox uses belongs to the tasks whose commands run in it at the time, in equal parts; to its own task while
// none runs; of bytes that means: when they went out. A command is counted for the task that it names. Any thread may
// call. The amounts have a mutex that is held for microseconds; whoever writes to the ledger, whose queue may be full,
// has the pen meanwhile, and nobody who only looks waits for that.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "ledger/ledger.h"
#include "sandbox/box.h"

namespace isola::sandbox {

enum class Scope : uint8_t { sandbox, task, project };

struct Spent {
  Scope scope = Scope::sandbox;
  std::string amount;  // cpu_seconds, wall_seconds, commands, bytes_out or money
  store::AtLimit then = store::AtLimit::end;
  std::string text() const;  // "its task's budget of money is spent"
};

class Accounts {
 public:
  Accounts(ledger::Ledger& ledger, ledger::PriceSheet prices) : ledger_(ledger), prices_(std::move(prices)) {}

  void set_prices(ledger::PriceSheet prices);
  void set_project(const std::string& project, const store::Budget& budget);
  // At the start, before anything is charged: what the ledger has of the time before.
  void begin_project(const std::string& project, const ledger::Usage& before);
  Result<void> begin_task(const store::TaskRecord& task);
  Result<void> begin_box(Box& box);
  // Later: begins to count for it. `marked` hears, on the ledger's thread, up to which entry the ledger has what came
  // before (0: nothing to add); the sum of that is then added with settle_task(). `living`: the project's sandboxes.
  Result<void> set_task(const store::TaskRecord& task, const std::vector<BoxPtr>& living,
                        ledger::ChainWriter::Done marked);
  void settle_task(const std::string& project, const std::string& task, const ledger::Usage& before);
  // Of a task with a budget.
  std::optional<ledger::Usage> used_by_task(const std::string& project, const std::string& task) const;
  ledger::Usage used_by(const Box& box) const;

  void charge(Box& box, const launcher::StatsReply& stats);
  // What is told of in the ledger by `tell` comes before the row that counts it, and no row comes between the two:
  // begin_box() finds what stands behind the newest row, and counts it, whenever a server was killed.
  // `tasks`: whose they are, in equal parts; nobody's: the sandbox's own task's.
  Result<void> add_bytes(Box& box, uint64_t bytes, const std::vector<std::string>& tasks,
                         const std::function<Result<void>()>& tell);
  void set_frozen(Box& box, bool frozen);  // its wall time stands still meanwhile
  // What a snapshot took of the disk between two moments: a row of its own, under its own name.
  void charge_storage(const std::string& project, const std::string& image, uint64_t bytes, Millis from, Millis to);
  // It was made again from an image: the kernel counts from nothing.
  void reborn(Box& box);
  // What the memory limit killed in it, as it was last seen.
  uint64_t oom_kills(const Box& box) const;
  void set_oom_kills(Box& box, uint64_t count);
  // Counted at once, so that of two at the same time only one has the last. give_back: it did not start after all.
  std::expected<void, Spent> take_command(Box& box, const std::string& task);
  void give_back_command(Box& box, const std::string& task);
  // It has started, which `tell` tells the ledger; what was not told is in no row.
  void tell_start(Box& box, const std::string& task, const std::function<void()>& tell);
  // Of one that a killed server took and did not tell: the same, and counts it.
  void tell_late_start(Box& box, const std::string& task, const std::function<void()>& tell);
  void command_begins(Box& box, const std::string& task);
  void command_ends(Box& box, const std::string& task);
  // Into the ledger, if the last row is older than `age`. false: it is not.
  bool write(Box& box, std::chrono::milliseconds age = std::chrono::milliseconds(0));

  // Whether some budget wants it to be looked at often.
  bool watched(const Box& box) const;
  // What has to end it. Commands are not among it unless asked for: the one too many is refused, and that is when it
  // ends.
  std::optional<Spent> spent(const Box& box, bool with_commands = false) const;
  // Tasks of commands inside, other than its own, that have nothing left.
  std::vector<std::string> spent_tasks(const Box& box) const;
  // For a sandbox that does not exist yet.
  std::optional<Spent> refuses(const std::string& project, const std::string& task) const;

 private:
  struct Account {
    store::Budget budget;
    ledger::Usage used;
  };
  static std::string slot(const std::string& project, const std::string& task) { return project + "\n" + task; }
  const Account* find_task(const std::string& project, const std::string& task) const;
  // What the ledger was told behind the newest row, by task.
  Result<std::map<std::string, ledger::Usage>> told_since(const Box& box);
  bool counts_anew(const store::TaskRecord& task);
  // What is in no row yet; nothing of it is left. Under mutex_, with the pen.
  std::vector<ledger::UsageRow> take_rows(Box& box, Millis to);
  void write_rows(const std::vector<ledger::UsageRow>& rows);
  void add(Box& box, const std::string& task, const ledger::Usage& used);
  std::string over(const store::Budget& budget, const ledger::Usage& used, bool with_commands) const;

  ledger::Ledger& ledger_;
  // Who has it may add to the ledger what rows count, and rows, in this order; taken before mutex_, never under it.
  std::mutex pen_;
  mutable std::mutex mutex_;
  ledger::PriceSheet prices_;
  std::unordered_map<std::string, Account> projects_;
  std::unordered_map<std::string, Account> tasks_;  // only those with a budget; by slot()
};

}  // namespace isola::sandbox
