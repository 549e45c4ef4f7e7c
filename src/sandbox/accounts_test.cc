#include "sandbox/accounts.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

#include "store/test_store.h"

namespace isola::sandbox {
namespace {

class AccountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EXPECT_TRUE(ledger::provide_key(folder_ / "ledger.db", folder_ / "ledger.key", ::getuid(), ::getgid()));
    auto opened = ledger::Ledger::open(folder_ / "ledger.db");
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
