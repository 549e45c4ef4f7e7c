#include "sandbox/accounts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <future>
#include <latch>

#include "store/test_store.h"

namespace isola::sandbox {
namespace {

class AccountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EXPECT_TRUE(ledger::provide_key(folder_ / "ledger.db", folder_ / "ledger.key", ::getuid(), ::getgid()));
    open({});
  }
  void open(const ledger::LedgerOptions& options) {
    accounts_.reset();
    ledger_.reset();
    auto opened = ledger::Ledger::open(folder_ / "ledger.db", options);
    ASSERT_TRUE(opened);
    ledger_ = std::move(*opened);
    accounts_ = std::make_unique<Accounts>(*ledger_, ledger::PriceSheet{.cpu_hour = 3600});
  }
  BoxPtr box(const std::string& task = {}, store::Budget budget = {}) {
    auto record = store::example("p", now_millis());
    record.task = task;
    record.budget = budget;
    record.state = State::running;
    return std::make_shared<Box>(io_, record);
  }
  static launcher::StatsReply cpu(uint64_t usec) {
    launcher::StatsReply stats;
    stats.cpu_usec = usec;
    return stats;
  }
  ledger::Usage of_task(const std::string& task) {
    EXPECT_TRUE(ledger_->flush());
    auto totals = ledger_->usage({.project = "p", .task = task}, ledger::GroupBy::all);
    return totals && !totals->empty() ? totals->front().used : ledger::Usage{};
  }
  void set_task(const std::string& task, const store::Budget& budget, const std::vector<BoxPtr>& living) {
    std::atomic<uint64_t> mark = UINT64_MAX;
    ASSERT_TRUE(accounts_->set_task({"p", task, budget}, living, [&](Result<uint64_t> said) {
      ASSERT_TRUE(said);
      mark = *said;
      mark.notify_all();
    }));
    mark.wait(UINT64_MAX);
    if (mark == 0) return;
    ledger::UsageFilter filter{.project = "p", .task = task};
    filter.up_to = mark;
    auto before = ledger_->usage(filter, ledger::GroupBy::all);
    ASSERT_TRUE(before);
    if (!before->empty()) accounts_->settle_task("p", task, before->front().used);
  }

  store::TempFolder folder_;
  boost::asio::io_context io_;
  std::unique_ptr<ledger::Ledger> ledger_;
  std::unique_ptr<Accounts> accounts_;
};

TEST_F(AccountsTest, EachScopeHasItsOwnBudget) {
  auto one = box("t", {.cpu_seconds = 10});
  accounts_->charge(*one, cpu(9'000'000));
  EXPECT_FALSE(accounts_->spent(*one));
  accounts_->set_project("p", {.money = 8});
  EXPECT_EQ(accounts_->spent(*one)->text(), "its project's budget of money is spent");
  set_task("t", {.cpu_seconds = 5, .at_limit = store::AtLimit::freeze}, {one});
  EXPECT_EQ(accounts_->spent(*one)->text(), "its task's budget of cpu_seconds is spent");
  EXPECT_EQ(accounts_->spent(*one)->then, store::AtLimit::freeze);
  accounts_->charge(*one, cpu(10'000'000));
  EXPECT_EQ(accounts_->spent(*one)->text(), "its budget of cpu_seconds is spent");
  EXPECT_EQ(accounts_->refuses("p", "t")->scope, Scope::task);
  EXPECT_EQ(accounts_->refuses("p", "")->scope, Scope::project);
  EXPECT_FALSE(accounts_->refuses("q", "t"));
}

TEST_F(AccountsTest, OfTwoCommandsOnlyOneHasTheLast) {
  auto one = box("", {.commands = 1});
  EXPECT_TRUE(accounts_->take_command(*one, ""));
  EXPECT_EQ(accounts_->take_command(*one, "").error().amount, "commands");
  accounts_->give_back_command(*one, "");
  EXPECT_TRUE(accounts_->take_command(*one, ""));
  auto other = box();
  accounts_->set_project("p", {.commands = 2});
  EXPECT_TRUE(accounts_->take_command(*other, ""));
  EXPECT_EQ(accounts_->take_command(*other, "").error().scope, Scope::project);
}

TEST_F(AccountsTest, WhatIsUsedBelongsToTheTasksThatRun) {
  auto one = box("own");
  accounts_->charge(*one, cpu(1'000));
  accounts_->command_begins(*one, "a");
  accounts_->command_begins(*one, "b");
  accounts_->charge(*one, cpu(2'001));
  accounts_->command_ends(*one, "a");
  accounts_->charge(*one, cpu(2'101));
  accounts_->command_ends(*one, "b");
  accounts_->charge(*one, cpu(2'102));
  accounts_->write(*one);
  EXPECT_EQ(of_task("own").cpu_usec, 1'001U);
  EXPECT_EQ(of_task("a").cpu_usec, 501U);  // of an odd number the first has one more
  EXPECT_EQ(of_task("b").cpu_usec, 600U);
  EXPECT_EQ(accounts_->used_by(*one).cpu_usec, 2'102U);
}

TEST_F(AccountsTest, ABudgetThatComesLaterCountsEverythingOnce) {
  auto one = box("t");
  accounts_->charge(*one, cpu(1'000'000));
  accounts_->write(*one);
  accounts_->charge(*one, cpu(2'000'000));  // in no row yet
  set_task("t", {.cpu_seconds = 100}, {one});
  accounts_->charge(*one, cpu(3'000'000));
  accounts_->write(*one);
  EXPECT_EQ(accounts_->used_by_task("p", "t")->cpu_usec, 3'000'000U);
  EXPECT_EQ(of_task("t").cpu_usec, 3'000'000U);
}

TEST_F(AccountsTest, AnAdoptedSandboxGoesOnWhereItWas) {
  auto one = box("t");
  accounts_->charge(*one, cpu(1'000'000));
  accounts_->write(*one);
  ASSERT_TRUE(ledger_->flush());
  auto again = std::make_shared<Box>(io_, one->record());
  ASSERT_TRUE(accounts_->begin_box(*again));
  accounts_->charge(*again, cpu(1'500'000));
  EXPECT_EQ(accounts_->used_by(*again).cpu_usec, 1'500'000U);
}

// Whenever a server is killed, the next one counts each command and each byte once: what the ledger was told of behind
// the newest row is in none.
TEST_F(AccountsTest, WhatWasToldAndIsInNoRowIsCountedByTheNext) {
  auto one = box("t");
  auto tell_start = [&](const char* data) {
    return [this, one, data] {
      ledger::Event event{.project = "p", .sandbox = one->id(), .task = "t", .kind = ledger::Kind::command_started};
      event.data = data;
      EXPECT_TRUE(ledger_->append(event));
    };
  };
  auto tell_bytes = [&]() -> Result<void> {
    ledger::Event event{.project = "p", .sandbox = one->id(), .task = "t", .kind = ledger::Kind::egress_allowed};
    event.data = R"({"bytes_out":1000})";
    return ledger_->append(event);
  };
  auto after_a_kill = [&] {
    EXPECT_TRUE(ledger_->flush());
    Accounts next(*ledger_, {});
    next.set_project("p", {.commands = 1000});
    auto again = std::make_shared<Box>(io_, one->record());
    EXPECT_TRUE(next.begin_box(*again));
    return next.used_by(*again);
  };
  ASSERT_TRUE(accounts_->take_command(*one, "t"));
  accounts_->tell_start(*one, "t", tell_start("{}"));
  EXPECT_EQ(after_a_kill().commands, 1U);  // no row was ever written
  accounts_->write(*one);
  EXPECT_EQ(after_a_kill().commands, 1U);
  ASSERT_TRUE(accounts_->take_command(*one, "t"));
  ASSERT_TRUE(accounts_->take_command(*one, "t"));
  accounts_->tell_start(*one, "t", tell_start("{}"));
  tell_start(R"({"counted":false})")();  // a hook
  ASSERT_TRUE(accounts_->add_bytes(*one, 1000, {}, tell_bytes));
  EXPECT_EQ(after_a_kill().commands, 2U);
  EXPECT_EQ(after_a_kill().bytes_out, 1000U);
  accounts_->write(*one);
  EXPECT_EQ(of_task("t").commands, 2U);  // one was taken and not told: it is in no row
  EXPECT_EQ(after_a_kill().commands, 2U);
  EXPECT_EQ(after_a_kill().bytes_out, 1000U);
  accounts_->give_back_command(*one, "t");
  accounts_->write(*one);
  EXPECT_EQ(of_task("t").commands, 2U);
  EXPECT_EQ(accounts_->used_by(*one).commands, 2U);
  accounts_->tell_late_start(*one, "t", tell_start("{}"));  // of a server before this one
  EXPECT_EQ(after_a_kill().commands, 3U);
  accounts_->write(*one);
  EXPECT_EQ(of_task("t").commands, 3U);
  EXPECT_EQ(after_a_kill().commands, 3U);
}

TEST_F(AccountsTest, ABudgetCountsWhatIsJustStarting) {
  auto one = box("t");
  ASSERT_TRUE(accounts_->take_command(*one, "t"));
  set_task("t", {.commands = 2}, {one});
  EXPECT_EQ(accounts_->used_by_task("p", "t")->commands, 1U);
  accounts_->tell_start(*one, "t", [] {});
  accounts_->write(*one);
  EXPECT_EQ(of_task("t").commands, 1U);
}

// One tenant's connections fill the ledger's queue: the budgets of the others are looked at all the same.
TEST_F(AccountsTest, WhoLooksDoesNotWaitForAFullLedger) {
  std::atomic<bool> stuck = false;
  std::latch telling(1), go(1);
  open({.queue_items = 1, .written = [&](uint64_t) {
          stuck = true;
          stuck.notify_all();
          go.wait();
        }});
  auto one = box(), other = box("t", {.commands = 1});
  auto event = [&] {
    ledger::Event event{.project = "p", .sandbox = one->id(), .kind = ledger::Kind::egress_allowed};
    event.data = R"({"bytes_out":1000})";
    return event;
  };
  ASSERT_TRUE(ledger_->append(event()));
  stuck.wait(false);
  ASSERT_TRUE(ledger_->append(event()));  // the queue is full, and nobody takes from it
  auto added = std::async(std::launch::async, [&] {
    return accounts_->add_bytes(*one, 1000, {}, [&] {
      telling.count_down();
      return ledger_->append(event());
    });
  });
  telling.wait();
  auto looked = std::async(std::launch::async, [&] {
    return !accounts_->spent(*other) && !accounts_->refuses("p", "t") && accounts_->take_command(*other, "t") &&
           !accounts_->write(*other, std::chrono::hours(1));
  });
  EXPECT_EQ(looked.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  go.count_down();
  EXPECT_TRUE(looked.get());
  EXPECT_TRUE(added.get());
  EXPECT_EQ(accounts_->used_by(*one).bytes_out, 1000U);
  open({});
}

TEST_F(AccountsTest, FrozenTimeDoesNotCount) {
  auto record = store::example("p", now_millis() - 5'000);
  auto one = std::make_shared<Box>(io_, record);
  accounts_->set_frozen(*one, true);
  accounts_->charge(*one, cpu(0));
  EXPECT_EQ(accounts_->used_by(*one).wall_ms, 0U);
  auto other = std::make_shared<Box>(io_, store::example("p", now_millis() - 5'000));
  accounts_->charge(*other, cpu(0));
  EXPECT_GE(accounts_->used_by(*other).wall_ms, 5'000U);
}

}  // namespace
}  // namespace isola::sandbox
