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
    auto verdict = verify_file(path(), {.expected = expected});
    ASSERT_TRUE(verdict) << verdict.error().message;
    ASSERT_TRUE(verdict->broken.has_value());
    EXPECT_EQ(*verdict->broken, seq) << verdict->what;
    EXPECT_NE(verdict->what.find(what), std::string::npos) << verdict->what;
    if (verdict->what.find("went with the power") != std::string::npos) return;
    EXPECT_EQ(verdict->entries, seq - 1);
  }
  // The same for whoever holds the key.
  void expect_forged(uint64_t seq, const std::string& what) {
    auto keys = this->keys();
    auto verdict = verify_file(path(), {.keys = &keys});
    ASSERT_TRUE(verdict) << verdict.error().message;
    ASSERT_TRUE(verdict->broken.has_value());
    EXPECT_EQ(*verdict->broken, seq) << verdict->what;
    EXPECT_NE(verdict->what.find(what), std::string::npos) << verdict->what;
  }
  // What a thorough forger does: makes every hash from `seq` on fit again.
  void rechain(uint64_t from, bool keyed = true) {
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
          hash = chain_hash(e, kind, prev, keyed).value();
          changes.push_back(
              fmt::format("UPDATE events SET prev = '{}', hash = '{}' WHERE seq = {}", prev, hash, e.seq));
        }
        prev = hash;
      }
    }
    for (const auto& change : changes) ASSERT_TRUE(db->run(change));
    if (!keyed) head_.hash = prev;
  }
  // As it was before there were macs.
  void age() {
    tamper("UPDATE events SET mac = ''");
    rechain(1, false);
    std::filesystem::remove(Ratchet::path_of(path()));
    std::filesystem::remove(key_path());
    ASSERT_TRUE(provide_key(path(), key_path(), ::getuid(), ::getgid()));
  }
  static constexpr const char* kWithoutMacs =
      "DROP INDEX events_of_secrets; ALTER TABLE events DROP COLUMN mac; DROP TABLE segment; DROP VIEW usage_sums; "
      "DROP TABLE usage_opening; "
      "CREATE VIEW usage_sums AS SELECT kind, name, project, min(from_ms) AS from_ms, max(to_ms) AS to_ms, "
      "sum(cpu_usec) AS cpu_usec, total(memory_byte_seconds) AS memory_byte_seconds, "
      "total(disk_byte_seconds) AS disk_byte_seconds, sum(bytes_out) AS bytes_out, sum(commands) AS commands, "
      "sum(wall_ms) AS wall_ms, count(*) AS samples, "
      "sum(CASE WHEN cpu_usec < wall_ms * 10 THEN wall_ms ELSE 0 END) AS idle_ms "
      "FROM usage_named GROUP BY kind, name, project; ";
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
  age();
  tamper(std::string(kWithoutMacs) + "ALTER TABLE events DROP COLUMN key; PRAGMA user_version = 2");
  auto verdict = verify_file(path(), {.expected = head_});
  ASSERT_TRUE(verdict) << verdict.error().message;
  EXPECT_TRUE(verdict->good()) << verdict->what;
  reopen();
  add(1);
  EXPECT_TRUE(ledger_->verify(head_)->good());
}

TEST_F(TamperTest, ALedgerFromBeforeTotalsIsStillGood) {
  age();
  tamper(std::string(kWithoutMacs) +
         "DROP VIEW usage_sums; DROP VIEW usage_named; DROP TABLE usage_totals; ALTER TABLE events DROP COLUMN key; "
         "PRAGMA user_version = 1");
  auto verdict = verify_file(path(), {.expected = head_});
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
      "INSERT INTO events SELECT 21, time, project, sandbox, task, actor, kind, data, prev, hash, key, mac FROM events "
      "WHERE seq "
      "= 20");
  expect_broken(21, "does not follow");
}

TEST_F(TamperTest, OneInsertedBeforeTheFirst) {
  tamper(
      "INSERT INTO events SELECT -5, time, project, sandbox, task, actor, kind, data, prev, hash, key, mac FROM events "
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

// The key knows how far the ledger was: the server leaves the numbers empty and says so.
TEST_F(TamperTest, TheEndCutOffAndContinued) {
  tamper("DELETE FROM events WHERE seq > 15");
  reopen();
  add(10);
  EXPECT_EQ(ledger_->head().seq, 31u);
  auto gap = ledger_->query({.kind_prefix = "ledger.gap"});
  ASSERT_TRUE(gap);
  ASSERT_EQ(gap->size(), 1u);
  EXPECT_EQ(gap->front().data, R"({"from":16,"to":20})");
  ledger_.reset();
  expect_broken(16, "entries 16 to 20 are missing: they were cut off, or went with the power");
  expect_forged(16, "were cut off");
  // What comes after it is looked at all the same.
  tamper("UPDATE events SET actor = 'mallory' WHERE seq = 25");
  expect_forged(16, "; and entry 25 was changed");
  // Nobody else may call a hole one of these.
  tamper("UPDATE events SET data = '{\"from\":15,\"to\":20}' WHERE seq = 21; DELETE FROM events WHERE seq = 15");
  expect_forged(15, "; and entry 21");
}

TEST_F(TamperTest, AllOfItDeletedAndContinued) {
  for (const char* end : {"", "-wal", "-shm"}) std::filesystem::remove(path() + end);
  reopen();
  add(1);
  ledger_.reset();
  expect_broken(1, "entries 1 to 20 are missing");
}

// Whoever has the file, and even the server's key of today, cannot make entries of yesterday: the hashes can be made to
// fit, the macs cannot.
TEST_F(TamperTest, EverythingRewrittenToFit) {
  tamper("UPDATE events SET actor = 'mallory' WHERE seq = 7");
  rechain(7);
  EXPECT_TRUE(verify_file(path())->good());  // by the hashes alone nothing is to be seen …
  expect_broken(20, "the ledger was rewritten", head_);
  expect_forged(7, "was not written with the ledger's key");  // … the key tells
}

TEST_F(TamperTest, EverythingRewrittenWithTheKeyOfToday) {
  tamper("UPDATE events SET actor = 'mallory' WHERE seq = 7");
  rechain(7);
  ChainKey key = Ratchet::open(path())->key();
  ASSERT_EQ(key.seq(), 21u);
  auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
  std::vector<std::string> hashes;
  {
    auto query = db->prepare("SELECT hash FROM events WHERE seq >= 7 ORDER BY seq");
    while (query->step().value()) hashes.push_back(query->text(0));
  }
  for (size_t i = 0; i < hashes.size(); ++i)
    ASSERT_TRUE(db->run(fmt::format("UPDATE events SET mac = '{}' WHERE seq = {}",
                                    ChainKey(7 + i, key.key()).mac(hashes[i]).value(), 7 + i)));
  expect_forged(7, "was not written with the ledger's key");
}

TEST_F(TamperTest, MacsTakenAway) {
  auto keys = this->keys();
  ASSERT_TRUE(verify_file(path(), {.keys = &keys})->good());
  tamper("UPDATE events SET mac = '' WHERE seq = 12");
  expect_forged(12, "was changed");
  // As if the end were from the time before them: the hashes fit then.
  tamper("UPDATE events SET mac = '' WHERE seq >= 12");
  rechain(12, false);
  expect_forged(12, "has no mac, though the one before it has");
  // And all of it.
  tamper("UPDATE events SET mac = ''");
  rechain(1, false);
  EXPECT_TRUE(verify_file(path())->good());
  expect_forged(1, "has no mac, though there was a key for it");
}

// Whoever has the server has the key of the next entry: all before it, made anew as if there had been no keys, and one
// genuine entry behind it.
TEST_F(TamperTest, ThePastAsIfItWereOlderThanKeys) {
  tamper("UPDATE events SET mac = '', actor = 'mallory'");
  rechain(1, false);
  reopen();
  add(1);
  ledger_.reset();
  expect_forged(1, "has no mac, though there was a key for it");
}

TEST_F(TamperTest, OneMacOfAnother) {
  tamper("UPDATE events SET mac = (SELECT mac FROM events WHERE seq = 8) WHERE seq = 9");
  expect_forged(9, "was not written with the ledger's key");
}

// Entries from before macs cannot be changed either once one with a mac follows.
TEST_F(TamperTest, OlderEntriesAreHeldByTheNewerOnes) {
  age();
  reopen();
  add(3);
  ledger_.reset();
  auto keys = this->keys();
  auto verdict = verify_file(path(), {.keys = &keys});
  ASSERT_TRUE(verdict) << verdict.error().message;
  EXPECT_TRUE(verdict->good()) << verdict->what;
  EXPECT_EQ(verdict->entries, 23u);
  EXPECT_EQ(verdict->keyed, 3u);
  tamper("UPDATE events SET actor = 'mallory' WHERE seq = 7");
  expect_forged(7, "was changed");
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
