#include "ledger/usage.h"

#include <cmath>

#include "ledger/test_ledger.h"

namespace isola::ledger {
namespace {

constexpr Millis kDay = 86'400'000;
constexpr double kGiB = 1024.0 * 1024 * 1024;

using UsageTest = LedgerTest;

UsageRow sample(const char* project, const char* sandbox, const char* task, Millis from, Usage used) {
  return {.project = project,
          .sandbox = sandbox,
          .task = task,
          .from = from,
          .to = from + static_cast<Millis>(used.wall_ms),
          .used = used};
}

TEST_F(UsageTest, SumsByEveryGroup) {
  Usage busy{.cpu_usec = 30'000'000,
             .memory_byte_seconds = 6e10,
             .disk_byte_seconds = 1e10,
             .bytes_out = 100,
             .commands = 2,
             .wall_ms = 60'000};
  Usage idle{.cpu_usec = 100'000, .memory_byte_seconds = 1e9, .wall_ms = 60'000};
  ASSERT_TRUE(ledger_->record_usage(sample("p1", "i1", "t1", kDay + 1000, busy)));
  ASSERT_TRUE(ledger_->record_usage(sample("p1", "i1", "t2", 2 * kDay - 1, idle)));
  ASSERT_TRUE(ledger_->record_usage(sample("p1", "i2", "t1", 2 * kDay, busy)));
  ASSERT_TRUE(ledger_->record_usage(sample("p2", "i3", "", 2 * kDay, idle)));
  ASSERT_TRUE(ledger_->flush());
  auto ask = [&](UsageFilter filter, GroupBy group) {
    auto totals = ledger_->usage(filter, group);
    EXPECT_TRUE(totals) << totals.error().message;
    return totals.value_or(std::vector<UsageTotals>{});
  };
  auto by_sandbox = ask({.project = "p1"}, GroupBy::sandbox);
  ASSERT_EQ(by_sandbox.size(), 2u);
  EXPECT_EQ(by_sandbox[0].key, "i1");
  EXPECT_EQ(by_sandbox[0].used.cpu_usec, 30'100'000u);
  EXPECT_EQ(by_sandbox[0].used.memory_byte_seconds, 6.1e10);
  EXPECT_EQ(by_sandbox[0].used.disk_byte_seconds, 1e10);
  EXPECT_EQ(by_sandbox[0].used.bytes_out, 100u);
  EXPECT_EQ(by_sandbox[0].used.commands, 2u);
  EXPECT_EQ(by_sandbox[0].used.wall_ms, 120'000u);
  EXPECT_EQ(by_sandbox[0].samples, 2u);
  EXPECT_EQ(by_sandbox[0].from, kDay + 1000);
  EXPECT_EQ(by_sandbox[0].to, 2 * kDay - 1 + 60'000);
  EXPECT_EQ(by_sandbox[0].idle_ms, 60'000u);
  EXPECT_EQ(by_sandbox[0].idle_ratio(), 0.5);
  EXPECT_EQ(by_sandbox[1].idle_ratio(), 0);

  auto by_day = ask({}, GroupBy::day);
  ASSERT_EQ(by_day.size(), 2u);
  EXPECT_EQ(by_day[0].key, "1970-01-02");
  EXPECT_EQ(by_day[0].samples, 2u);
  EXPECT_EQ(by_day[1].key, "1970-01-03");
  auto by_task = ask({}, GroupBy::task);
  ASSERT_EQ(by_task.size(), 3u);
  EXPECT_EQ(by_task[0].key, "");
  EXPECT_EQ(by_task[1].used.cpu_usec, 60'000'000u);
  auto by_project = ask({}, GroupBy::project);
  ASSERT_EQ(by_project.size(), 2u);
  EXPECT_EQ(by_project[1].key, "p2");
  EXPECT_EQ(by_project[1].idle_ratio(), 1);  // stands out
  auto all = ask({.task = "t1"}, GroupBy::all);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].samples, 2u);
  auto span = ask({.from = 2 * kDay}, GroupBy::all);
  ASSERT_EQ(span.size(), 1u);
  EXPECT_EQ(span[0].samples, 2u);
  span = ask({.sandbox = "i1", .to = 2 * kDay - 1}, GroupBy::all);
  ASSERT_EQ(span.size(), 1u);
  EXPECT_EQ(span[0].samples, 1u);
  EXPECT_TRUE(ask({.sandbox = "nobody"}, GroupBy::all).empty());

  // Each sample is an entry of the chain too.
  EXPECT_EQ(ledger_->query({.kind_prefix = "usage."})->size(), 4u);
  EXPECT_TRUE(ledger_->verify()->good());
}

// The kept sums, which answer where no time is given, say what the samples say.
TEST_F(UsageTest, KeptSumsAreThoseOfTheSamples) {
  for (unsigned i = 0; i < 300; ++i) {
    auto name = [&](const char* word, unsigned of) { return word + std::to_string(i * 7919 % of); };
    Usage used{.cpu_usec = i * 1000ull,
               .memory_byte_seconds = i * 10.0,
               .disk_byte_seconds = i * 3.0,
               .bytes_out = i,
               .commands = i % 3,
               .wall_ms = 1000 + i * 50};
    std::string task = i % 5 ? name("t", 4) : "";
    ASSERT_TRUE(ledger_->record_usage(
        sample(name("p", 3).c_str(), name("i", 21).c_str(), task.c_str(), 1000 + i * 37 % 100, used)));
  }
  ASSERT_TRUE(ledger_->flush());
  for (const char* project : {"", "p0", "p1", "nobody"}) {
    for (const char* sandbox : {"", "i0", "i7", "nobody"}) {
      for (const char* task : {"", "t0", "t3", "nobody"}) {
        for (GroupBy group : {GroupBy::all, GroupBy::project, GroupBy::task, GroupBy::sandbox}) {
          UsageFilter filter{.project = project, .sandbox = sandbox, .task = task};
          auto kept = ledger_->usage(filter, group);
          filter.up_to = 1'000'000;  // a bound that leaves nothing out makes it read the samples
          auto summed = ledger_->usage(filter, group);
          ASSERT_TRUE(kept && summed);
          ASSERT_EQ(kept->size(), summed->size()) << project << sandbox << task << static_cast<int>(group);
          for (size_t i = 0; i < kept->size(); ++i) {
            const auto &a = kept->at(i), &b = summed->at(i);
            EXPECT_EQ(std::tie(a.key, a.from, a.to, a.samples, a.idle_ms),
                      std::tie(b.key, b.from, b.to, b.samples, b.idle_ms));
            EXPECT_EQ(a.used, b.used);
          }
        }
      }
    }
  }
  EXPECT_TRUE(ledger_->verify()->good());
}

// Pages of groups are those of the whole, also where samples stand in several files.
TEST_F(UsageTest, PagesMakeTheWhole) {
  for (unsigned i = 0; i < 60; ++i) {
    if (i == 30) {
      ASSERT_TRUE(ledger_->flush());  // a file without entries is not ended
      auto rotated = ledger_->rotate();
      ASSERT_TRUE(rotated) << rotated.error().message;
    }
    std::string name = "i" + std::to_string(i * 7 % 20), task = i % 4 ? "t" + std::to_string(i % 4) : "";
    ASSERT_TRUE(ledger_->record_usage(sample("p", name.c_str(), task.c_str(), 1000, {.commands = 1, .wall_ms = 1000})));
  }
  ASSERT_TRUE(ledger_->flush());
  for (Millis from : {Millis{0}, Millis{1}}) {  // kept sums, and samples
    for (GroupBy group : {GroupBy::sandbox, GroupBy::task}) {
      auto whole = ledger_->usage({.project = "p", .from = from}, group);
      ASSERT_TRUE(whole) << whole.error().message;
      ASSERT_EQ(whole->size(), group == GroupBy::sandbox ? 20u : 4u);
      std::vector<UsageTotals> seen;
      UsageFilter filter{.project = "p", .from = from};
      filter.limit = 3;
      for (;;) {
        auto page = ledger_->usage(filter, group);
        ASSERT_TRUE(page) << page.error().message;
        ASSERT_LE(page->size(), 3u);
        seen.insert(seen.end(), page->begin(), page->end());
        if (page->size() < 3) break;
        filter.after = page->back().key;
      }
      ASSERT_EQ(seen.size(), whole->size());
      for (size_t i = 0; i < seen.size(); ++i) {
        EXPECT_EQ(seen[i].key, whole->at(i).key);
        EXPECT_EQ(seen[i].used, whole->at(i).used);
      }
    }
  }
}

TEST_F(UsageTest, WhatCannotBeIsRefusedBeforeItReachesTheQueue) {
  for (double amount : {std::nan(""), -1.0, HUGE_VAL, 1e300}) {
    EXPECT_EQ(ledger_->record_usage(sample("p", "i", "", 1, {.memory_byte_seconds = amount})).error().code,
              Code::invalid);
    EXPECT_EQ(ledger_->record_usage(sample("p", "i", "", 1, {.disk_byte_seconds = amount})).error().code,
              Code::invalid);
  }
  EXPECT_EQ(ledger_->record_usage(sample("p", "i", "", 1, {.bytes_out = ~uint64_t{0}})).error().code, Code::invalid);
  EXPECT_EQ(ledger_->record_usage({.project = "p", .from = 2, .to = 1}).error().code, Code::invalid);
  ASSERT_TRUE(ledger_->record_usage(sample("p", "i", "", 1, {.memory_byte_seconds = 10.6})));
  ASSERT_TRUE(ledger_->flush());
  EXPECT_EQ(ledger_->head().seq, 1u);
  EXPECT_EQ(ledger_->usage({}, GroupBy::all)->at(0).used.memory_byte_seconds, 11);
  EXPECT_TRUE(ledger_->verify()->good());
}

TEST(Usage, IdleButRunning) {
  UsageRow row{.used = {.cpu_usec = 9'999, .wall_ms = 1000}};
  EXPECT_TRUE(row.idle());
  row.used.cpu_usec = 10'000;
  EXPECT_FALSE(row.idle());
  EXPECT_EQ(row.used.busy(), 0.01);
  row.used = {};
  EXPECT_FALSE(row.idle());  // did not run at all
  EXPECT_EQ(row.used.busy(), 0);
}

TEST(PriceSheet, Money) {
  PriceSheet sheet{.currency = "EUR",
                   .cpu_hour = 0.05,
                   .memory_gib_hour = 0.01,
                   .disk_gib_hour = 0.001,
                   .out_gib = 0.1,
                   .command = 0.0001};
  Usage used{.cpu_usec = 7'200'000'000,
             .memory_byte_seconds = 4 * kGiB * 3600,
             .disk_byte_seconds = 10 * kGiB * 3600,
             .bytes_out = 3ull << 30,
             .commands = 50,
             .wall_ms = 1};
  Cost cost = price(used, sheet);
  EXPECT_DOUBLE_EQ(cost.cpu, 0.10);
  EXPECT_DOUBLE_EQ(cost.memory, 0.04);
  EXPECT_DOUBLE_EQ(cost.disk, 0.01);
  EXPECT_DOUBLE_EQ(cost.out, 0.3);
  EXPECT_DOUBLE_EQ(cost.commands, 0.005);
  EXPECT_DOUBLE_EQ(cost.total(), 0.455);
  EXPECT_EQ(price(used, {}).total(), 0);
}

}  // namespace
}  // namespace isola::ledger
