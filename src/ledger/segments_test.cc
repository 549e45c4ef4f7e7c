#include "ledger/segments.h"

#include <thread>

#include "ledger/test_ledger.h"

namespace isola::ledger {
namespace {

class SegmentsTest : public LedgerTest {
 protected:
  void use(uint64_t cpu) {
    ASSERT_TRUE(ledger_->record_usage(
        {.project = "p", .sandbox = "i1", .task = "t", .from = 5, .to = 10, .used = {.cpu_usec = cpu, .wall_ms = 5}}));
    ASSERT_TRUE(ledger_->flush());
  }
  Verdict verified(const std::optional<Head>& expected = std::nullopt,
                   const std::optional<Head>& begins = std::nullopt) {
    auto keys = this->keys();
    auto verdict = verify_all(path(), {.expected = expected, .keys = &keys, .begins = begins});
    EXPECT_TRUE(verdict) << verdict.error().message;
    return verdict.value_or(Verdict{});
  }
  void tamper(const std::string& file, const std::string& sql) {
    auto db = sqlite::Database::open(file, kLedgerSchema, sqlite::Sync::normal);
    ASSERT_TRUE(db);
    for (const char* trigger : {"events_stay", "events_remain"})
      ASSERT_TRUE(db->run(std::string("DROP TRIGGER IF EXISTS ") + trigger));
    auto done = db->run(sql);
    ASSERT_TRUE(done) << done.error().message;
  }
};

TEST_F(SegmentsTest, TheChainAndTheSumsGoOn) {
  add(5);
  use(70);
  auto kept = ledger_->head();
  ASSERT_FALSE(rotate(path())) << "a server has it open";
  ledger_.reset();
  auto first = rotate(path());
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->head, kept);
  reopen();
  EXPECT_EQ(ledger_->head().seq, 7u);  // ledger.rotated
  use(7);
  auto sums = ledger_->usage({.task = "t"}, GroupBy::all);
  ASSERT_TRUE(sums);
  EXPECT_EQ(sums->at(0).used.cpu_usec, 77u);
  EXPECT_EQ(sums->at(0).samples, 2u);
  add(3);
  EXPECT_TRUE(ledger_->verify()->good()) << ledger_->verify()->what;
  ledger_.reset();
  ASSERT_TRUE(rotate(path()));
  reopen();
  add(2);
  EXPECT_EQ(segments_of(path())->size(), 3u);
  auto verdict = verified(ledger_->head());
  EXPECT_TRUE(verdict.good()) << verdict.what;
  EXPECT_EQ(verdict.entries, ledger_->head().seq);
  EXPECT_EQ(verdict.keyed, verdict.entries);
  EXPECT_TRUE(verified(kept).good());
  // An old file that was taken away: somebody has to vouch for where the rest begins.
  std::filesystem::remove(first->file);
  EXPECT_EQ(verified().broken, 1u) << verified().what;
  EXPECT_NE(verified().what.find("entries 1 to 6 are not here"), std::string::npos) << verified().what;
  EXPECT_TRUE(verified(first->head).good()) << verified(first->head).what;
  EXPECT_TRUE(verified(ledger_->head(), first->head).good());
  // A head within what is left shows that nothing of that was changed, not that nothing was before it.
  EXPECT_EQ(verified(ledger_->head()).broken, 1u);
}

// Whoever has the server's user deletes what it did not like, and lets the rest begin where it pleases.
TEST_F(SegmentsTest, ABeginningThatIsGoneOrMadeUp) {
  add(4);
  const Head early = ledger_->head();
  add(2);
  auto first = ledger_->rotate();
  ASSERT_TRUE(first) << first.error().message;
  add(3);
  const Head late = ledger_->head();
  ledger_.reset();
  EXPECT_TRUE(verified(early).good());
  std::filesystem::remove(first->file);
  // A checkpoint of something that is gone, which nothing that is left could be compared with.
  for (const auto& begins : {std::optional<Head>(), std::optional<Head>(first->head)}) {
    EXPECT_EQ(verified(early, begins).broken, 5u) << verified(early, begins).what;
    EXPECT_NE(verified(early, begins).what.find("older than the first entry"), std::string::npos);
  }
  // Another end of what was before, with the entries after it made to fit: as the server's key at that time allows.
  Head other = first->head;
  other.hash = std::string(64, 'a');
  EXPECT_EQ(verified(std::nullopt, other).broken, 7u) << verified(std::nullopt, other).what;
  EXPECT_EQ(verified(other).broken, 7u) << verified(other).what;
  EXPECT_NE(verified(other).what.find("rewritten"), std::string::npos) << verified(other).what;
  tamper(path(), "UPDATE segment SET prev = '" + other.hash + "'");
  EXPECT_FALSE(verified(std::nullopt, first->head).good());
  EXPECT_FALSE(verified(first->head).good());
  EXPECT_FALSE(verified(late).good());
}

TEST_F(SegmentsTest, OneThatIsInUseIsRotated) {
  add(5);
  use(70);
  auto first = ledger_->rotate();
  ASSERT_TRUE(first) << first.error().message;
  EXPECT_EQ(first->head.seq, 6u);
  use(7);
  auto second = ledger_->rotate();
  ASSERT_TRUE(second) << second.error().message;
  add(2);
  EXPECT_EQ(segments_of(path())->size(), 3u);
  EXPECT_EQ(ledger_->head().seq, 11u);  // two of them ledger.rotated
  auto verdict = verified(first->head);
  EXPECT_TRUE(verdict.good()) << verdict.what;
  EXPECT_EQ(verdict.entries, 11u);
  // What is over is found all the same, in both directions and with any bound.
  auto numbers = [&](EventFilter filter) {
    std::vector<uint64_t> out;
    auto events = ledger_->query(filter);
    EXPECT_TRUE(events) << events.error().message;
    for (const auto& event : *events) out.push_back(event.seq);
    return out;
  };
  EXPECT_EQ(numbers({}), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(numbers({.after = 5, .limit = 3}), (std::vector<uint64_t>{6, 7, 8}));
  EXPECT_EQ(numbers({.limit = 3, .newest_first = true}), (std::vector<uint64_t>{11, 10, 9}));
  EXPECT_EQ(numbers({.before = 8, .limit = 2, .newest_first = true}), (std::vector<uint64_t>{7, 6}));
  EXPECT_EQ(ledger_->usage({.task = "t"}, GroupBy::all)->at(0).used.cpu_usec, 77u);  // of the sums
  EXPECT_EQ(ledger_->usage({.from = 1}, GroupBy::day)->at(0).used.cpu_usec, 77u);    // of the samples
  EXPECT_EQ(ledger_->usage({.task = "t", .up_to = 6}, GroupBy::all)->at(0).used.cpu_usec, 70u);
  reopen();
  add(1);
  EXPECT_TRUE(verified().good()) << verified().what;
}

TEST_F(SegmentsTest, OneThatOthersReadIsNotRotated) {
  add(3);
  {
    auto reader = sqlite::Database::open_reader(path());
    ASSERT_TRUE(reader);
    EXPECT_EQ(reader->integer("SELECT count(*) FROM events").value(), 3);  // idle, but open
    EXPECT_EQ(ledger_->rotate().error().code, Code::unavailable);
    add(2);
    EXPECT_EQ(reader->integer("SELECT count(*) FROM events").value(), 5);
  }
  EXPECT_TRUE(ledger_->rotate());
  EXPECT_TRUE(verified().good()) << verified().what;
}

TEST_F(SegmentsTest, WritersDoNotLoseAWordToRotations) {
  constexpr int kWriters = 3, kEach = 400;
  std::vector<std::thread> writers;
  for (int w = 0; w < kWriters; ++w)
    writers.emplace_back([&, w] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(ledger_->append_durably(event(fmt::format("w{}", w))));
    });
  int done = 0;
  while (done < 5) {
    auto rotated = ledger_->rotate();
    done += rotated.has_value();
    const Code code = rotated ? Code::invalid : rotated.error().code;  // it may still be empty
    EXPECT_EQ(code, Code::invalid);
  }
  for (auto& writer : writers) writer.join();
  for (int w = 0; w < kWriters; ++w)
    EXPECT_EQ(ledger_->query({.sandbox = fmt::format("w{}", w), .limit = 10'000})->size(), static_cast<size_t>(kEach));
  auto verdict = verified(ledger_->head());
  EXPECT_TRUE(verdict.good()) << verdict.what;
  EXPECT_EQ(verdict.entries, static_cast<uint64_t>(kWriters * kEach + 5));
}

TEST_F(SegmentsTest, TamperingWithFilesThatAreOver) {
  add(5);
  ledger_.reset();
  auto first = rotate(path());
  ASSERT_TRUE(first);
  reopen();
  use(1);
  ledger_.reset();
  auto second = rotate(path());
  ASSERT_TRUE(second) << second.error().message;
  ASSERT_TRUE(verified().good());
  tamper(first->file, "DELETE FROM events WHERE seq = 5");
  EXPECT_EQ(verified().broken, 5u) << verified().what;
  std::filesystem::remove(first->file);
  EXPECT_TRUE(verified(first->head).good());
  tamper(second->file, "UPDATE events SET data = '{}' WHERE seq = 6");
  EXPECT_EQ(verified(first->head).broken, 6u) << verified(first->head).what;
  EXPECT_NE(verified(first->head).what.find("ledger-"), std::string::npos) << verified(first->head).what;
  // The next one, moved away as well.
  std::filesystem::remove(second->file);
  reopen();
  add(1);
  EXPECT_TRUE(verified(second->head).good()) << verified(second->head).what;
  EXPECT_FALSE(verified(first->head).good());
  ledger_.reset();
  tamper(path(), "UPDATE usage_opening SET cpu_usec = 0; UPDATE usage_totals SET cpu_usec = 0");
  EXPECT_NE(verified(second->head).what.find("other sums of usage"), std::string::npos) << verified().what;
}

// Without any checkpoint: the server's key knows how far the ledger was, and cannot be taken back.
TEST_F(SegmentsTest, TheKeyOfTheMomentTellsACutOffEnd) {
  add(6);
  auto keys = this->keys();
  auto look = [&] { return verify_living(path(), {.keys = &keys}).value(); };
  EXPECT_TRUE(look().good()) << look().what;  // beside a writer
  ledger_.reset();
  EXPECT_TRUE(look().good()) << look().what;
  tamper(path(), "DELETE FROM events WHERE seq > 4");
  EXPECT_EQ(look().broken, 5u) << look().what;
  EXPECT_NE(look().what.find("up to 6: the server's key is further on"), std::string::npos) << look().what;
  // A key that says it is the one of entry 5, and is not.
  std::filesystem::remove(Ratchet::path_of(path()));
  std::string other = folder_ + "/other.key";
  ASSERT_TRUE(replace_key(path(), other, 5, ::getuid(), ::getgid()));
  EXPECT_NE(look().what.find("somebody put another one there"), std::string::npos) << look().what;
  std::filesystem::remove(Ratchet::path_of(path()));
  EXPECT_NE(look().what.find("has no key"), std::string::npos) << look().what;
}

TEST_F(SegmentsTest, AGapBetweenFiles) {
  add(2);
  ledger_.reset();
  ASSERT_TRUE(rotate(path()));
  auto second = rotate(path());
  ASSERT_TRUE(second) << second.error().message;
  ASSERT_TRUE(rotate(path()));
  ASSERT_TRUE(verified().good());
  std::filesystem::remove(second->file);
  EXPECT_EQ(verified().broken, 3u) << verified().what;
}

TEST_F(SegmentsTest, KilledHalfway) {
  add(4);
  ledger_.reset();
  auto done = rotate(path());
  ASSERT_TRUE(done);
  // After the first of the two names was changed.
  std::filesystem::rename(path(), path() + ".next");
  reopen();
  EXPECT_EQ(ledger_->head().seq, 5u);
  ledger_.reset();
  // Before any was.
  std::filesystem::copy_file(path(), path() + ".next");
  reopen();
  EXPECT_FALSE(std::filesystem::exists(path() + ".next"));
  EXPECT_TRUE(verified().good());
}

TEST_F(SegmentsTest, ANewKeyWhereTheOldOneIsLost) {
  add(4);
  ledger_.reset();
  std::filesystem::remove(Ratchet::path_of(path()));
  EXPECT_EQ(rotate(path()).error().code, Code::denied);
  auto done =
      rotate(path(), [&](uint64_t next) { return replace_key(path(), key_path(), next, ::getuid(), ::getgid()); });
  ASSERT_TRUE(done) << done.error().message;
  reopen();
  add(3);
  auto verdict = verified();
  EXPECT_TRUE(verdict.good()) << verdict.what;
  EXPECT_EQ(verdict.keyed, 8u);
}

}  // namespace
}  // namespace isola::ledger
