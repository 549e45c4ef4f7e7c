// Somebody with write access to the file: whatever they do, verify() names the first entry that is not as it was.
#include "ledger/test_ledger.h"

namespace isola::ledger {
namespace {

class TamperTest : public LedgerTest {
 protected:
  void SetUp() override {
    LedgerTest::SetUp();
    add(10);
    ASSERT_TRUE(ledger_->record_usage(
        {.project = "p", .sandbox = "i1", .task = "t", .from = 5, .to = 10, .used = {.cpu_usec = 77}}));
    ASSERT_TRUE(ledger_->flush());
    add(9);
    head_ = ledger_->head();
    ASSERT_EQ(head_.seq, 20u);
    ASSERT_TRUE(ledger_->verify(head_)->good());
    ledger_.reset();
  }
  void tamper(const std::string& sql) {
    auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
    ASSERT_TRUE(db);
    ASSERT_TRUE(db->run("PRAGMA foreign_keys = OFF"));
    for (const char* trigger : {"events_stay", "events_remain", "usage_stays", "usage_remains", "usage_counts"})
      ASSERT_TRUE(db->run(std::string("DROP TRIGGER IF EXISTS ") + trigger));
    auto done = db->run(sql);
    ASSERT_TRUE(done) << done.error().message;
  }
  void expect_broken(uint64_t seq, const std::string& what, const std::optional<Head>& expected = std::nullopt) {
    auto verdict = verify_file(path(), expected);
    ASSERT_TRUE(verdict) << verdict.error().message;
    ASSERT_TRUE(verdict->broken.has_value());
    EXPECT_EQ(*verdict->broken, seq) << verdict->what;
    EXPECT_NE(verdict->what.find(what), std::string::npos) << verdict->what;
    EXPECT_EQ(verdict->entries, seq - 1);
  }
  // What a thorough forger does: makes every hash from `seq` on fit again.
  void rechain(uint64_t from) {
    auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
    ASSERT_TRUE(db);
    std::string prev = kNoHash;
    std::vector<std::string> changes;
    {
      auto query =
          db->prepare("SELECT seq, time, project, sandbox, task, actor, kind, data, hash FROM events ORDER BY seq");
      ASSERT_TRUE(query);
      while (query->step().value()) {
        sqlite::Row row(*query);
        Event e{.seq = row.integer<uint64_t>(),
                .time = row.integer(),
                .project = row.text(),
                .sandbox = row.text(),
                .task = row.text(),
                .actor = row.text()};
        std::string kind = row.text();
        e.data = row.text();
        std::string hash = row.text();
        if (e.seq >= from) {
          hash = chain_hash(e, kind, prev).value();
          changes.push_back(
              fmt::format("UPDATE events SET prev = '{}', hash = '{}' WHERE seq = {}", prev, hash, e.seq));
        }
        prev = hash;
      }
    }
    for (const auto& change : changes) ASSERT_TRUE(db->run(change));
  }
  Head head_;
};

TEST_F(TamperTest, TheKeyIsPartOfAnEntry) {
  reopen();
  auto e = event("i1");
  e.key = "kbob";
  ASSERT_TRUE(ledger_->append_durably(e));
  auto last = ledger_->query({.after = 20});
  ASSERT_TRUE(last);
  ASSERT_EQ(last->size(), 1u);
  EXPECT_EQ(last->front().key, "kbob");
  ASSERT_TRUE(ledger_->verify()->good());
  ledger_.reset();
  for (const char* key : {"kalice", ""}) {
    tamper(std::string("UPDATE events SET key = '") + key + "' WHERE seq = 21");
    expect_broken(21, "was changed");
  }
}

// Entries of the time before keys keep their hashes, in the file as it was and as it is now.
TEST_F(TamperTest, ALedgerFromBeforeKeysIsStillGood) {
  tamper("ALTER TABLE events DROP COLUMN key; PRAGMA user_version = 2");
  auto verdict = verify_file(path(), head_);
  ASSERT_TRUE(verdict) << verdict.error().message;
  EXPECT_TRUE(verdict->good()) << verdict->what;
  reopen();
  add(1);
  EXPECT_TRUE(ledger_->verify(head_)->good());
}

TEST_F(TamperTest, ALedgerFromBeforeTotalsIsStillGood) {
  tamper(
      "DROP VIEW usage_sums; DROP VIEW usage_named; DROP TABLE usage_totals; ALTER TABLE events DROP COLUMN key; "
      "PRAGMA user_version = 1");
  auto verdict = verify_file(path(), head_);
  ASSERT_TRUE(verdict) << verdict.error().message;
  EXPECT_TRUE(verdict->good()) << verdict->what;
  reopen();
  add(1);
  EXPECT_TRUE(ledger_->verify(head_)->good());
}

TEST_F(TamperTest, AnyFieldChanged) {
  for (const char* change : {"time = time + 1", "project = 'q'", "sandbox = 'other'", "task = ''", "actor = 'mallory'",
                             "kind = 'command.ended'", "data = '{}'"}) {
    tamper("CREATE TABLE IF NOT EXISTS kept AS SELECT * FROM events WHERE seq = 7");
    tamper(fmt::format("UPDATE events SET {} WHERE seq = 7", change));
    expect_broken(7, "was changed");
    tamper("REPLACE INTO events SELECT * FROM kept");
    ASSERT_TRUE(verify_file(path())->good());
  }
}

TEST_F(TamperTest, TextMovedFromOneFieldToTheNext) {
  tamper("UPDATE events SET task = task || actor, actor = '' WHERE seq = 4");
  expect_broken(4, "was changed");
}

TEST_F(TamperTest, OneDeleted) {
  tamper("DELETE FROM events WHERE seq = 7");
  expect_broken(7, "is missing");
}

TEST_F(TamperTest, OneDeletedAndTheRestRenumbered) {
  tamper("DELETE FROM events WHERE seq = 7; UPDATE events SET seq = seq - 1 WHERE seq > 7");
  expect_broken(7, "does not follow");
}

TEST_F(TamperTest, TheFirstDeleted) {
  tamper("DELETE FROM events WHERE seq = 1");
  expect_broken(1, "is missing");
}

TEST_F(TamperTest, TwoSwapped) {
  tamper(
      "UPDATE events SET seq = 99 WHERE seq = 4; UPDATE events SET seq = 4 WHERE seq = 5; UPDATE events SET seq = 5 "
      "WHERE seq = 99");
  expect_broken(4, "does not follow");
}

TEST_F(TamperTest, OneInserted) {
  tamper(
      "INSERT INTO events SELECT 21, time, project, sandbox, task, actor, kind, data, prev, hash, key FROM events "
      "WHERE seq "
      "= 20");
  expect_broken(21, "does not follow");
}

TEST_F(TamperTest, OneInsertedBeforeTheFirst) {
  tamper(
      "INSERT INTO events SELECT -5, time, project, sandbox, task, actor, kind, data, prev, hash, key FROM events "
      "WHERE seq "
      "= 1");
  expect_broken(1, "something was put before it");
}

TEST_F(TamperTest, TheEndCutOff) {
  tamper("DELETE FROM events WHERE seq > 15");
  auto alone = verify_file(path());
  ASSERT_TRUE(alone);
  EXPECT_TRUE(alone->good());                                                // by itself a shorter chain is a chain …
  expect_broken(16, "is missing, and everything after it up to 20", head_);  // … the head that was kept tells
}

TEST_F(TamperTest, TheEndCutOffAndContinued) {
  tamper("DELETE FROM events WHERE seq > 15");
  reopen();
  add(10);
  ledger_.reset();
  EXPECT_TRUE(verify_file(path())->good());
  expect_broken(20, "the ledger was rewritten", head_);
}

TEST_F(TamperTest, EverythingRewrittenToFit) {
  tamper("UPDATE events SET actor = 'mallory' WHERE seq = 7");
  rechain(7);
  EXPECT_TRUE(verify_file(path())->good());
  expect_broken(20, "the ledger was rewritten", head_);
}

TEST_F(TamperTest, AllOfItDeleted) {
  tamper("DELETE FROM events; DELETE FROM usage");
  expect_broken(1, "is missing", head_);
}

TEST_F(TamperTest, UsageThatDiffersFromTheChain) {
  tamper("UPDATE usage SET cpu_usec = 1");
  expect_broken(11, "differs from its usage sample");
  tamper("UPDATE usage SET cpu_usec = 77, sandbox = 'other'");
  expect_broken(11, "differs from its usage sample");
  tamper("DELETE FROM usage");
  expect_broken(11, "has lost its usage sample");
}

TEST_F(TamperTest, SumsThatDifferFromTheSamples) {
  tamper("UPDATE usage_totals SET cpu_usec = cpu_usec - 1 WHERE kind = 'project'");
  expect_broken(21, "sums of usage differ");
  tamper("DELETE FROM usage_totals");
  expect_broken(21, "sums of usage differ");
}

TEST_F(TamperTest, UsageFromNowhere) {
  tamper("INSERT INTO usage SELECT 3, project, sandbox, task, from_ms, to_ms, cpu_usec, 0, 0, 0, 0, 0 FROM usage");
  expect_broken(3, "has a usage sample that is not its own");
  tamper("UPDATE usage SET seq = 40 WHERE seq = 3");
  expect_broken(21, "is missing, its usage sample is still there");
}

}  // namespace
}  // namespace isola::ledger
