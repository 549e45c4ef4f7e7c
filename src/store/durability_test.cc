// What survives: kill -9 at any moment, a full disk, older forms of the file, many threads at once.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <atomic>
#include <fstream>
#include <random>
#include <thread>

#include "base/fd.h"
#include "store/sandbox_list.h"
#include "store/sqlite_schema.h"
#include "store/test_store.h"

namespace isola::store {
namespace {

// What the child acknowledges: step n of its fixed sequence is done. Sandbox i is made by step 2i and ended by 2i + 1.
std::string nth_id(uint32_t i) { return fmt::format("i{:020}", i); }

[[noreturn]] void write_until_killed(const std::string& path, int acknowledge, uint32_t first) {
  auto store = SqliteStore::open(path);
  if (!store) ::_exit(1);
  for (uint32_t step = first;; ++step) {
    auto s = example();
    s.id = nth_id(step / 2);
    s.name = s.id;
    s.metadata = {{"filler", std::string(step % 3000, 'x')}};
    auto done = step % 2 == 0 ? (*store)->insert_sandbox(s) : (*store)->set_end(s.id, EndReason::exited, "done", step);
    if (!done) ::_exit(2);
    if (::write(acknowledge, &step, sizeof step) != sizeof step) ::_exit(3);
  }
}

// By the thread that is there for it, long before a writer would have to do it.
TEST_F(StoreTest, TheLogIsCopiedAsideAndBeginsAgain) {
  auto size = [&](const char* end) { return std::filesystem::file_size(path() + end); };
  const auto before = size("");
  int n = 0;
  for (; size("-wal") < (6u << 20); ++n) ASSERT_TRUE(store_->insert_sandbox(example()));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (size("") == before && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_GT(size(""), before) << "after " << n << " commits";
}

TEST_F(StoreTest, NothingAcknowledgedIsLostByAKill) {
  int rounds = full_suite() ? 200 : 20;
  if (!full_suite()) std::printf("reduced: kills of a writer 20 instead of 200 (ISOLA_TEST_FULL=1 does all)\n");
  store_.reset();
  std::mt19937 random(std::random_device{}());
  uint32_t next = 0;
  for (int round = 0; round < rounds; ++round) {
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    Fd in(ends[0]), out(ends[1]);
    pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_until_killed(path(), out.get(), next);
    out.reset();
    // Random by the number of acknowledgements that are waited for, plus however far the child got meanwhile.
    uint32_t last = 0, wanted = 1 + random() % (round % 4 == 0 ? 600 : 60);
    bool any = false;
    auto take = [&] { return ::read(in.get(), &last, sizeof last) == sizeof last; };
    for (uint32_t i = 0; i < wanted && take(); ++i) any = true;
    ::kill(child, SIGKILL);
    while (take()) any = true;
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer failed by itself: " << WEXITSTATUS(status);
    ASSERT_TRUE(any);
    reopen();
    // Everything in the last round, what is recent in the others: else the checks grow with the square of the rounds.
    uint32_t oldest = round + 1 == rounds || last < 500 ? 0 : last - 500;
    for (uint32_t step = oldest; step <= last; ++step) {
      auto found = store_->find_sandbox(nth_id(step / 2));
      ASSERT_TRUE(found) << "step " << step << " of " << last << ": " << found.error().message;
      if (step % 2 == 1) {
        ASSERT_EQ(found->state, State::ended) << step;
        ASSERT_EQ(found->ended, step);
      }
    }
    // At most one step beyond the last acknowledgement can have happened.
    next = last + 1;
    if (auto found = store_->find_sandbox(nth_id(next / 2)); found && (next % 2 == 0 || found->state == State::ended))
      ++next;
    EXPECT_FALSE(store_->find_sandbox(nth_id(next / 2 + 1)));
    auto living = store_->living();
    ASSERT_TRUE(living);
    EXPECT_EQ(living->size(), next % 2);
    EXPECT_EQ(store_->project_use("default")->live_sandboxes, next % 2);
    store_.reset();
  }
}

// In a child with a mount namespace of its own: a small tmpfs, filled until the store cannot write. 0: all is well;
// otherwise the line that was not.
int fill_the_disk(const std::string& folder) {
#define WANT(condition) \
  if (!(condition)) return __LINE__
  WANT(::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
  WANT(::mount("none", folder.c_str(), "tmpfs", 0, "size=2m") == 0);
  auto opened = SqliteStore::open(folder + "/store.db");
  WANT(opened);
  auto& store = **opened;
  WANT(store.insert_project({.id = "default", .name = "default"}));
  std::vector<std::string> there;
  for (int refused = 0; refused < 20;) {
    WANT(there.size() < 10'000);
    auto s = example();
    s.metadata = {{"filler", std::string(3000, 'x')}};
    auto done = store.insert_sandbox(s);
    if (done) {
      there.push_back(s.id);
      continue;
    }
    ++refused;
    WANT(done.error().code == Code::exhausted);
    WANT(done.error().message.find("no space left") != std::string::npos);
    WANT(store.find_sandbox(s.id).error().code == Code::not_found);
  }
  WANT(there.size() > 10);
  WANT(store.living()->size() == there.size());
  WANT(store.project_use("default")->live_sandboxes == there.size());
  // With room again it goes on, with the same connection.
  WANT(::mount("none", folder.c_str(), nullptr, MS_REMOUNT, "size=8m") == 0);
  for (const auto& id : there) WANT(store.set_end(id, EndReason::limit, "", 5));
  WANT(store.insert_sandbox(example()));
  opened->reset();
  auto again = SqliteStore::open(folder + "/store.db");
  WANT(again);
  WANT((*again)->living()->size() == 1);
  return 0;
#undef WANT
}

TEST(Durability, AFullDiskIsSaidAndNothingIsHalfWritten) {
  TempFolder folder;
  pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int line = fill_the_disk(folder.path());
    if (line) std::fprintf(stderr, "durability_test.cc:%d: not so (errno: %s)\n", line, std::strerror(errno));
    ::_exit(line != 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// The columns of a table that somebody writes, with what they declare; without those that have a value by themselves.
std::vector<std::pair<std::string, std::string>> columns_of(sqlite::Database& db, const std::string& table) {
  auto query = db.prepare("SELECT name, type FROM pragma_table_info('" + table + "') WHERE dflt_value IS NULL");
  EXPECT_TRUE(query);
  std::vector<std::pair<std::string, std::string>> all;
  while (query && query->step().value_or(false)) all.emplace_back(query->text(0), query->text(1));
  return all;
}

// Another value in each column, but where it has to be one of a few.
std::string value_in(const std::string& column, const std::string& type, size_t at) {
  static const std::map<std::string, std::string> kWords = {
      {"project", "p1"},        {"actor", "k1"},          {"hash", "the hash"},
      {"scope", "use"},         {"boundary", "jail"},     {"birth", "cold"},
      {"state", "running"},     {"at_end", "kill"},       {"metadata", "{\"a\":\"b\"}"},
      {"env", "{\"C\":\"d\"}"}, {"on_create", "[\"x\"]"}, {"on_resume", "[\"y\"]"},
      {"end_reason", "exited"}};
  if (auto word = kWords.find(column); word != kWords.end()) return "'" + word->second + "'";
  if (column == "auto_resume" || column == "secure") return "1";
  if (column == "revoked" || column == "ended") return "0";
  if (column.starts_with("limit_") || column.starts_with("budget_")) return std::to_string(1'000'000 + at);
  if (type == "TEXT") return "'" + column + "'";
  return std::to_string(at + 1) + (type == "REAL" ? ".5" : "");
}

std::map<std::string, std::string> row_of(sqlite::Database& db, const std::string& table,
                                          const std::vector<std::pair<std::string, std::string>>& columns) {
  std::map<std::string, std::string> row;
  for (const auto& [column, type] : columns) {
    auto query = db.prepare("SELECT " + column + " FROM " + table);
    EXPECT_TRUE(query && query->step().value_or(false)) << table << "." << column;
    if (query) row[column] = query->text(0);
  }
  return row;
}

// With what was in it: a project, a key and a sandbox as that version had them.
TEST(Durability, EveryOlderFormIsBroughtUp) {
  const std::pair<std::string, std::string> kTables[] = {{"projects", "p1"}, {"keys", "k1"}, {"sandboxes", nth_id(1)}};
  for (size_t version = 0; version <= kStoreSchema.steps.size(); ++version) {
    TempFolder folder;
    auto path = folder / "store.db";
    std::map<std::string, std::vector<std::pair<std::string, std::string>>> columns;
    std::map<std::string, std::map<std::string, std::string>> before;
    if (version > 0) {
      sqlite::Schema old = kStoreSchema;
      old.steps = kStoreSchema.steps.first(version);
      auto db = sqlite::Database::open(path, old, sqlite::Sync::normal);
      ASSERT_TRUE(db);
      for (const auto& [table, id] : kTables) {
        columns[table] = columns_of(*db, table);
        std::string names, values;
        for (size_t i = 0; const auto& [column, type] : columns[table]) {
          names += (i ? ", " : "") + column;
          values += (i ? ", " : "") + (column == "id" ? "'" + id + "'" : value_in(column, type, i));
          ++i;
        }
        auto put = db->run("INSERT INTO " + table + " (" + names + ") VALUES (" + values + ")");
        ASSERT_TRUE(put) << version << ": " << put.error().message;
        before[table] = row_of(*db, table, columns[table]);
      }
    }
    auto store = SqliteStore::open(path);
    ASSERT_TRUE(store) << version << ": " << store.error().message;
    ASSERT_TRUE((*store)->insert_project({.id = "default", .name = "default"}));
    EXPECT_TRUE((*store)->insert_sandbox(example()));
    if (version == 0) continue;
    auto sandbox = (*store)->find_sandbox(nth_id(1));
    ASSERT_TRUE(sandbox) << version << ": " << sandbox.error().message;
    EXPECT_EQ(sandbox->metadata, (Labels{{"a", "b"}}));
    EXPECT_EQ(sandbox->made_by, version < 5 ? "k1" : "") << version;
    auto key = (*store)->find_key_by_hash("the hash");
    ASSERT_TRUE(key) << version;
    EXPECT_EQ(key->project, "p1");
    EXPECT_EQ((*store)->project_use("p1")->live_sandboxes, 1u) << version;
    // None of its columns became another's.
    ASSERT_TRUE((*store)->set_end(nth_id(1), EndReason::killed, "", 5));
    EXPECT_EQ((*store)->project_use("p1")->live_sandboxes, 0u) << version;
    store->reset();
    auto db = sqlite::Database::open_reader(path);
    ASSERT_TRUE(db);
    for (const auto& [table, id] : kTables) {
      for (const auto& [column, type] : columns[table]) {
        if (table == "sandboxes" && (column == "state" || column.starts_with("end"))) continue;  // just ended
        auto query = db->prepare("SELECT " + column + " FROM " + table + " WHERE id = '" + id + "'");
        ASSERT_TRUE(query && query->step().value_or(false)) << version << ": " << table << "." << column;
        EXPECT_EQ(query->text(0), before[table][column]) << version << ": " << table << "." << column;
      }
    }
  }
}

TEST_F(StoreTest, ANewerFormIsRefused) {
  store_.reset();
  std::vector<std::string_view> steps(kStoreSchema.steps.begin(), kStoreSchema.steps.end());
  steps.push_back("CREATE TABLE future (x);");
  ASSERT_TRUE(sqlite::Database::open(
      path(), {.application_id = kStoreSchema.application_id, .what = "store", .steps = steps}, sqlite::Sync::normal));
  auto store = SqliteStore::open(path());
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::unsupported);
  EXPECT_NE(store.error().message.find("written by a newer Isola"), std::string::npos) << store.error().message;
}

TEST_F(StoreTest, ADamagedFileIsRefused) {
  store_.reset();
  std::filesystem::remove(path() + "-wal");
  std::ofstream(path()) << "this was a database once, it is not one any more: " << std::string(9000, '#');
  auto store = SqliteStore::open(path());
  ASSERT_FALSE(store);
  EXPECT_EQ(store.error().code, Code::corrupt);
  EXPECT_NE(store.error().message.find("is damaged or is not one"), std::string::npos) << store.error().message;
}

TEST_F(StoreTest, ManyThreadsOneLimit) {
  constexpr int kThreads = 8, kEach = 40;
  constexpr uint32_t kMost = 100;
  ASSERT_TRUE(store_->change_project("default", {.limits = ProjectLimits{.live_sandboxes = kMost}}));
  std::atomic<uint32_t> made = 0, refused = 0, taken = 0, named = 0, odd = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        auto s = example();
        if (i == 0) s.name = "only-one";
        auto done = store_->insert_sandbox(s);
        if (done) {
          ++made;
          if (i == 0) ++named;
          if (store_->find_sandbox(s.id).value().id != s.id) ++odd;
          if (!store_->touch({{s.id, i}})) ++odd;
        } else if (done.error().code == Code::exhausted) {
          ++refused;
        } else if (done.error().code == Code::exists && i == 0) {
          ++taken;
        } else {
          ++odd;
        }
        if (!store_->list_sandboxes({.project = "default"}, "", 5)) ++odd;
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(made, kMost);
  EXPECT_EQ(named, 1u);
  // A thread that comes late may find the limit reached before it finds the name taken.
  EXPECT_EQ(refused + taken, kThreads * kEach - kMost);
  EXPECT_EQ(odd, 0u);
  EXPECT_EQ(store_->living()->size(), kMost);
}

// The log is copied into the file beside the work; it does not grow with every commit.
TEST_F(StoreTest, TheLogStaysShort) {
  for (int i = 0; i < 3000; ++i) {
    auto s = example();
    s.metadata = {{"filler", std::string(2000, 'x')}};
    ASSERT_TRUE(store_->insert_sandbox(s));
  }
  EXPECT_LT(std::filesystem::file_size(path() + "-wal"), 80u << 20);
  EXPECT_GT(std::filesystem::file_size(path()), 2u << 20);  // much of it has arrived
}

// Work per request does not grow with what is stored: each query goes by an index.
TEST_F(StoreTest, NoQueryScans) {
  auto db = sqlite::Database::open_reader(path());
  ASSERT_TRUE(db);
  for (const char* where :
       {"id = 'x'", "project = 'p' AND name = 'n' AND name <> '' AND state <> 'ended'",
        "project = 'p' AND key = 'n' AND key <> '' AND state <> 'ended'", "project = 'p' AND state <> 'ended'",
        "project = 'p' AND state = 'ended'", "state = 'ended' AND ended < 5 ORDER BY ended LIMIT 5"}) {
    auto plan = db->prepare(std::string("EXPLAIN QUERY PLAN SELECT * FROM sandboxes WHERE ") + where);
    ASSERT_TRUE(plan) << plan.error().message;
    while (plan->step().value()) {
      std::string step = plan->text(3);
      if (step == "MERGE (UNION ALL)" || step == "LEFT" || step == "RIGHT") continue;  // in the order of its indexes
      EXPECT_TRUE(step.starts_with("SEARCH sandboxes USING INDEX")) << where << ": " << step;
    }
  }
}

// The lists, in the words in which they are really asked: none sorts, and none looks at another project's.
TEST_F(StoreTest, NoListScans) {
  auto db = sqlite::Database::open_reader(path());
  ASSERT_TRUE(db);
  std::vector<SandboxFilter> filters = {
      {.project = "p"},
      {.project = "p", .states = {State::ended}},
      {.project = "p", .states = {State::running, State::paused}},
      {.project = "p", .states = {State::running, State::ended}},
      {.project = "p", .metadata = {{"user", "ada"}}},
      {.project = "p", .name_prefix = "web-"},
      {.project = "p", .task = "t"},
      {.project = "p", .states = {State::running}, .metadata = {{"a", "b"}, {"c", "d"}}, .name_prefix = "w"}};
  for (const auto& filter : filters) {
    for (const std::string& cursor : {std::string(), to_text(Cursor{5, "x"})}) {
      auto page = PageRequest::of(cursor, 5);
      ASSERT_TRUE(page);
      SandboxQuestion question(filter, *page);
      auto plan = db->prepare("EXPLAIN QUERY PLAN " + question.sql());
      ASSERT_TRUE(plan) << plan.error().message;
      question.bind(*plan);
      int searched = 0;
      while (plan->step().value()) {
        std::string step = plan->text(3);
        if (step.starts_with("SEARCH sandboxes USING INDEX")) ++searched;
        // The labels of one record are not a table.
        bool label = step.find("label") != std::string::npos || step.starts_with("CORRELATED SCALAR SUBQUERY");
        bool merge = step == "MERGE (UNION ALL)" || step == "LEFT" || step == "RIGHT";
        EXPECT_TRUE(step.starts_with("SEARCH sandboxes USING INDEX") || label || merge)
            << question.sql() << ": " << step;
      }
      EXPECT_GE(searched, 1) << question.sql();
    }
  }
}

}  // namespace
}  // namespace isola::store
