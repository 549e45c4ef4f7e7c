#include "ledger/ledger.h"

#include <algorithm>
#include <set>

#include "ledger/test_ledger.h"

namespace isola::ledger {
namespace {

TEST(Kind, EveryWordComesBack) {
  std::set<std::string_view> words;
  for (Kind kind : all_kinds()) {
    EXPECT_TRUE(words.insert(to_string(kind)).second);
    EXPECT_EQ(parse_kind(to_string(kind)), kind);
    EXPECT_NE(to_string(kind).find('.'), std::string_view::npos);
  }
  EXPECT_FALSE(parse_kind("sandbox"));
  EXPECT_FALSE(parse_kind(""));
}

TEST(Head, AsText) {
  Head head{.seq = 17, .hash = std::string(64, 'a')};
  EXPECT_EQ(parse_head(to_text(head)).value(), head);
  EXPECT_EQ(parse_head(to_text(Head{}))->seq, 0u);
  for (const char* bad : {"", "17", "17:", ":aa", "x:y", "17:ABC"}) EXPECT_FALSE(parse_head(bad)) << bad;
}

TEST_F(LedgerTest, RoundTrip) {
  Event e{.time = 123,
          .project = "p",
          .sandbox = "i1",
          .task = "t",
          .actor = "alice",
          .kind = Kind::egress_denied,
          .data = R"({"name":"exämple.org"})"};
  EXPECT_EQ(ledger_->append_durably(e).value(), 1u);
  EXPECT_EQ(ledger_->append_durably({.kind = Kind::server_stopped}).value(), 2u);
  auto all = ledger_->query({});
  ASSERT_TRUE(all) << all.error().message;
  ASSERT_EQ(all->size(), 2u);
  const Event& got = (*all)[0];
  EXPECT_EQ(got.seq, 1u);
  EXPECT_EQ(got.time, 123);
  EXPECT_EQ(got.project, "p");
  EXPECT_EQ(got.sandbox, "i1");
  EXPECT_EQ(got.task, "t");
  EXPECT_EQ(got.actor, "alice");
  EXPECT_EQ(got.kind, Kind::egress_denied);
  EXPECT_EQ(got.data, e.data);
  EXPECT_EQ(got.prev, kNoHash);
  EXPECT_EQ(got.hash.size(), 64u);
  EXPECT_EQ((*all)[1].prev, got.hash);
  EXPECT_EQ((*all)[1].data, "{}");
  EXPECT_GT((*all)[1].time, 1'500'000'000'000);  // the present
  EXPECT_EQ(ledger_->head(), (Head{2, (*all)[1].hash}));
}

TEST_F(LedgerTest, TheChainGoesOnAfterReopening) {
  EXPECT_EQ(ledger_->head().seq, 0u);
  add(5);
  auto head = ledger_->head();
  EXPECT_EQ(head.seq, 5u);
  reopen();
  EXPECT_EQ(ledger_->head(), head);
  add(5);
  auto verdict = ledger_->verify(head);
  ASSERT_TRUE(verdict);
  EXPECT_TRUE(verdict->good()) << verdict->what;
  EXPECT_EQ(verdict->entries, 10u);
  EXPECT_EQ(verdict->head, ledger_->head());
}

TEST_F(LedgerTest, ClosingWritesWhatIsQueued) {
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(ledger_->append(event("i1")));
  reopen();
  EXPECT_EQ(ledger_->head().seq, 5000u);
}

TEST_F(LedgerTest, OneWriterOnly) {
  auto second = Ledger::open(path());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::unavailable);
  EXPECT_NE(second.error().message.find("another process writes the ledger"), std::string::npos);
}

TEST_F(LedgerTest, Filters) {
  auto put = [&](const char* project, const char* sandbox, const char* task, Kind kind, Millis time) {
    ASSERT_TRUE(ledger_->append({.time = time, .project = project, .sandbox = sandbox, .task = task, .kind = kind}));
  };
  put("p1", "i1", "t1", Kind::sandbox_created, 100);  // 1
  put("p1", "i1", "t1", Kind::command_started, 200);  // 2
  put("p1", "i2", "t1", Kind::sandbox_created, 300);  // 3
  put("p2", "i3", "t1", Kind::sandbox_created, 400);  // 4
  put("p1", "i1", "", Kind::sandbox_ended, 500);      // 5
  put("", "", "", Kind::server_stopped, 600);         // 6
  ASSERT_TRUE(ledger_->flush());
  using Seqs = std::vector<uint64_t>;
  auto seqs = [&](EventFilter filter) {
    auto found = ledger_->query(filter);
    EXPECT_TRUE(found) << found.error().message;
    Seqs list;
    if (found)
      for (const auto& e : *found) list.push_back(e.seq);
    return list;
  };
  EXPECT_EQ(seqs({}), (Seqs{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(seqs({.project = "p1"}), (Seqs{1, 2, 3, 5}));
  EXPECT_EQ(seqs({.sandbox = "i1"}), (Seqs{1, 2, 5}));
  EXPECT_EQ(seqs({.project = "p2", .sandbox = "i1"}), Seqs{});
  EXPECT_EQ(seqs({.task = "t1"}), (Seqs{1, 2, 3, 4}));
  EXPECT_EQ(seqs({.project = "p1", .task = "t1", .kind_prefix = "sandbox."}), (Seqs{1, 3}));
  EXPECT_EQ(seqs({.kind_prefix = "sandbox.created"}), (Seqs{1, 3, 4}));
  EXPECT_EQ(seqs({.kind_prefix = "created"}), Seqs{});
  EXPECT_EQ(seqs({.from = 200, .to = 500}), (Seqs{2, 3, 4}));
  EXPECT_EQ(seqs({.project = "p1", .from = 200}), (Seqs{2, 3, 5}));
  EXPECT_EQ(seqs({.sandbox = "i1", .to = 500}), (Seqs{1, 2}));
  EXPECT_EQ(seqs({.after = 2, .limit = 2}), (Seqs{3, 4}));
  EXPECT_EQ(seqs({.limit = 2, .newest_first = true}), (Seqs{6, 5}));
  EXPECT_EQ(seqs({.before = 5, .limit = 2, .newest_first = true}), (Seqs{4, 3}));
  EXPECT_EQ(seqs({.after = ~uint64_t{0}}), Seqs{});
  EXPECT_EQ(seqs({.before = ~uint64_t{0}, .limit = 1}), Seqs{1});
  EXPECT_EQ(ledger_->query({.limit = 0}).error().code, Code::invalid);
}

TEST_F(LedgerTest, WhatHappenedWithASecret) {
  auto put = [&](Kind kind, const char* sandbox, const char* data) {
    ASSERT_TRUE(
        ledger_->append({.time = 1, .project = "p", .sandbox = sandbox, .task = "t", .kind = kind, .data = data}));
  };
  put(Kind::secret_created, "", R"({"secret":"github"})");
  put(Kind::secret_used, "i1", R"({"secret":"github","name":"api.example.org"})");
  put(Kind::secret_used, "i2", R"({"secret":"other","name":"api.example.org"})");
  put(Kind::command_started, "i1", R"({"secret":"github"})");  // not of the kinds
  put(Kind::scan_hit, "i1", "no json");
  put(Kind::scan_hit, "i3", R"({"secret":"github","form":"base64","where":"stdout"})");
  ASSERT_TRUE(ledger_->flush());
  auto found = ledger_->query({.secret = "github"});
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 3u);
  EXPECT_EQ((*found)[1].sandbox, "i1");
  EXPECT_EQ((*found)[2].kind, Kind::scan_hit);
  EXPECT_EQ(ledger_->query({.sandbox = "i3", .secret = "github"})->size(), 1u);
}

TEST_F(LedgerTest, QuestionsGoByAnIndex) {
  auto db = sqlite::Database::open_reader(path());
  ASSERT_TRUE(db);
  for (const char* where :
       {" WHERE sandbox = 'x' AND sandbox <> ''", " WHERE task = 'x' AND task <> ''", " WHERE project = 'x'",
        " INDEXED BY events_by_time WHERE project = 'x' AND time >= 5", " WHERE seq > 5"}) {
    auto plan = db->prepare(fmt::format("EXPLAIN QUERY PLAN SELECT * FROM events {} ORDER BY seq LIMIT 5", where));
    ASSERT_TRUE(plan) << plan.error().message;
    ASSERT_TRUE(plan->step().value());
    EXPECT_TRUE(plan->text(3).starts_with("SEARCH events USING IN")) << where << ": " << plan->text(3);
  }
}

// Of what nobody finds: every entry would be looked at. Who has no time for that hears it, and nobody else is held up.
TEST_F(LedgerTest, AQuestionThatTakesTooLongIsGivenUp) {
  add(30'000);
  EventFilter filter{.project = "p", .kind_prefix = "sandbox."};
  filter.until = std::chrono::steady_clock::now();
  auto given_up = ledger_->query(filter);
  ASSERT_FALSE(given_up);
  EXPECT_EQ(given_up.error().code, Code::timeout);
  EXPECT_EQ(ledger_->query({.sandbox = "i1", .limit = 5})->size(), 5u);
  filter.until = std::chrono::steady_clock::now() + std::chrono::hours(1);
  EXPECT_TRUE(ledger_->query(filter).value().empty());
  filter.until.reset();
  EXPECT_TRUE(ledger_->query(filter).value().empty());
}

TEST_F(LedgerTest, AKindThatThereIsNotIsNotLookedFor) {
  add(30'000);
  EventFilter filter{.project = "p", .kind_prefix = "zzz"};
  filter.until = std::chrono::steady_clock::now();
  auto none = ledger_->query(filter);
  ASSERT_TRUE(none) << none.error().message;
  EXPECT_TRUE(none->empty());
}

TEST_F(LedgerTest, TooLargeAnEntryIsRefused) {
  auto e = event("i1");
  e.data = std::string((1 << 20) + 1, 'x');
  EXPECT_EQ(ledger_->append(e).error().code, Code::invalid);
  EXPECT_EQ(ledger_->append_durably(event("i1")).value(), 1u);
}

TEST_F(LedgerTest, OrdinaryStatementsCannotRewriteIt) {
  add(3);
  ledger_.reset();
  auto db = sqlite::Database::open(path(), kLedgerSchema, sqlite::Sync::normal);
  ASSERT_TRUE(db);
  for (const char* sql : {"DELETE FROM events WHERE seq = 3", "UPDATE events SET actor = 'x'"}) {
    auto refused = db->run(sql);
    ASSERT_FALSE(refused) << sql;
    EXPECT_NE(refused.error().message.find("the ledger only grows"), std::string::npos);
  }
}

// Entries may be heavy: a page ends before it is too much, and whoever goes on behind it misses nothing.
TEST_F(LedgerTest, APageIsOnlySoHeavy) {
  auto heavy = [&](int count) {
    for (int i = 0; i < count; ++i) {
      auto e = event("i1");
      e.data = R"({"x":")" + std::string(1000, 'x') + R"("})";
      ASSERT_TRUE(ledger_->append(e));
    }
    ASSERT_TRUE(ledger_->flush());
  };
  heavy(4);
  ASSERT_TRUE(ledger_->rotate());
  heavy(3);
  for (bool newest : {false, true}) {
    EventFilter filter{.project = "p", .bytes = 4000, .newest_first = newest};
    std::vector<uint64_t> seen;
    size_t pages = 0;
    for (bool more = true; more; ++pages) {
      auto page = ledger_->query(filter);
      ASSERT_TRUE(page);
      EXPECT_LE(page->size(), 4u);
      for (const auto& one : *page) seen.push_back(one.seq);
      more = goes_on(*page, filter);
      if (more) (newest ? filter.before : filter.after) = page->back().seq;
    }
    EXPECT_EQ(pages, 3u);
    std::ranges::sort(seen);
    EXPECT_EQ(seen, (std::vector<uint64_t>{1, 2, 3, 4, 6, 7, 8}));
  }
  EventFilter tiny{.project = "p", .bytes = 1};
  auto one = ledger_->query(tiny);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->size(), 1u) << "one is always there, or nobody would get on";
  EXPECT_FALSE(goes_on({}, tiny));
}

}  // namespace
}  // namespace isola::ledger
