#include "store/sqlite.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <fstream>
#include <vector>

#include "base/file.h"
#include "store/test_store.h"

namespace isola::sqlite {
namespace {

constexpr std::array<std::string_view, 3> kSteps = {
    "CREATE TABLE pets (name TEXT NOT NULL UNIQUE) ;",
    "ALTER TABLE pets ADD COLUMN age INTEGER NOT NULL DEFAULT 1;",
    "UPDATE pets SET age = age * 10; CREATE INDEX by_age ON pets(age);",
};
Schema schema_of(size_t steps) {
  return {.application_id = 77, .what = "zoo", .steps = std::span(kSteps).first(steps)};
}

class SqliteTest : public ::testing::Test {
 protected:
  Result<Database> open(size_t steps = 3) { return Database::open(path_, schema_of(steps), Sync::normal); }
  store::TempFolder folder_;
  std::string path_ = folder_ / "zoo.db";
};

TEST_F(SqliteTest, BindsStepsAndCaches) {
  auto db = open();
  ASSERT_TRUE(db) << db.error().message;
  for (int i = 0; i < 3; ++i) {
    auto put = db->prepare("INSERT INTO pets VALUES (?, ?)");
    ASSERT_TRUE(put);
    ASSERT_TRUE(put->bind(std::string("pet\0", 4) + std::to_string(i), i).run());
    EXPECT_EQ(db->changed(), 1);
  }
  auto get = db->prepare("SELECT name, age FROM pets WHERE age >= ? ORDER BY age");
  ASSERT_TRUE(get);
  get->bind(uint64_t{1});
  ASSERT_TRUE(get->step().value());
  EXPECT_EQ(get->text(0), std::string("pet\0", 4) + "1");
  ASSERT_TRUE(get->step().value());
  EXPECT_EQ(get->integer(1), 2);
  // The same text while the first is in use: a second one, not a disturbed first.
  auto again = db->prepare("SELECT name, age FROM pets WHERE age >= ? ORDER BY age");
  ASSERT_TRUE(again);
  ASSERT_TRUE(again->bind(0).step().value());
  EXPECT_EQ(again->integer(1), 0);
  EXPECT_FALSE(get->step().value());
}

TEST_F(SqliteTest, ErrorsHaveCodes) {
  auto db = open();
  ASSERT_TRUE(db);
  ASSERT_TRUE(db->run("INSERT INTO pets VALUES ('Rex', 1)"));
  EXPECT_EQ(db->run("INSERT INTO pets VALUES ('Rex', 2)").error().code, Code::exists);
  EXPECT_EQ(db->run("INSERT INTO pets VALUES (NULL, 2)").error().code, Code::invalid);
  EXPECT_EQ(db->prepare("SELECT nonsense FROM nowhere").error().code, Code::internal);
  auto put = db->prepare("INSERT INTO pets VALUES (?, ?)");
  ASSERT_TRUE(put);
  EXPECT_EQ(put->bind("Big", ~uint64_t{0}).run().error().code, Code::invalid);
  put->reset();
  EXPECT_EQ(put->bind("a", 1, "one too many").run().error().code, Code::invalid);
  put->reset();
  EXPECT_TRUE(put->bind("b", 1).run());
}

TEST_F(SqliteTest, WhatIsNotCommittedIsUndone) {
  auto db = open();
  ASSERT_TRUE(db);
  {
    auto change = Transaction::begin(*db);
    ASSERT_TRUE(change);
    ASSERT_TRUE(db->run("INSERT INTO pets VALUES ('Rex', 1)"));
  }
  EXPECT_EQ(db->integer("SELECT count(*) FROM pets").value(), 0);
  {
    auto change = Transaction::begin(*db);
    ASSERT_TRUE(change);
    ASSERT_TRUE(db->run("INSERT INTO pets VALUES ('Rex', 1)"));
    ASSERT_TRUE(change->commit());
  }
  EXPECT_EQ(db->integer("SELECT count(*) FROM pets").value(), 1);
}

TEST_F(SqliteTest, OnlyTheOwnerMayReadTheFile) {
  ASSERT_TRUE(open());
  struct stat seen;
  ASSERT_EQ(::stat(path_.c_str(), &seen), 0);
  EXPECT_EQ(seen.st_mode & 0777, 0600u);
}

TEST_F(SqliteTest, WhatWasDeletedIsNotInTheFile) {
  const std::string word = "a-word-that-is-gone";
  {
    auto db = open();
    ASSERT_TRUE(db);
    ASSERT_TRUE(db->run("INSERT INTO pets VALUES ('" + word + "', 1), ('stays', 2)"));
    ASSERT_TRUE(db->checkpoint());
    ASSERT_TRUE(db->run("DELETE FROM pets WHERE age = 1"));
  }
  auto bytes = read_file(path_);
  ASSERT_TRUE(bytes);
  EXPECT_NE(bytes->find("stays"), std::string::npos);
  EXPECT_EQ(bytes->find(word), std::string::npos);
}

TEST_F(SqliteTest, AFullDiskIsToldByItsNumber) {
  auto db = open();
  ASSERT_TRUE(db);
  ASSERT_TRUE(db->run("PRAGMA max_page_count = 4"));  // the library's own way of having no room
  auto full = db->run("INSERT INTO pets VALUES (hex(randomblob(100000)), 1)");
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code, Code::exhausted);
  EXPECT_EQ(full.error().sys_errno, ENOSPC);
}

TEST_F(SqliteTest, AReaderCannotWrite) {
  auto db = open();
  ASSERT_TRUE(db);
  auto reader = Database::open_reader(path_);
  ASSERT_TRUE(reader);
  EXPECT_FALSE(reader->run("INSERT INTO pets VALUES ('Rex', 1)"));
  ASSERT_TRUE(db->run("INSERT INTO pets VALUES ('Rex', 1)"));
  EXPECT_EQ(reader->integer("SELECT count(*) FROM pets").value(), 1);
}

TEST_F(SqliteTest, MigratesFromEveryOlderVersion) {
  for (size_t from = 0; from <= kSteps.size(); ++from) {
    std::filesystem::remove(path_);
    if (from > 0) {
      auto old = open(from);
      ASSERT_TRUE(old) << old.error().message;
      ASSERT_TRUE(old->run("INSERT INTO pets (name) VALUES ('Rex')"));
    }
    auto db = open();
    ASSERT_TRUE(db) << db.error().message;
    EXPECT_EQ(db->integer("PRAGMA user_version").value(), 3);
    EXPECT_EQ(db->integer("PRAGMA application_id").value(), 77);
    EXPECT_EQ(db->integer("SELECT count(*) FROM pets").value(), from > 0 ? 1 : 0);
    // The last step multiplies: it ran once for files from before it, never for one that had it.
    EXPECT_EQ(db->integer("SELECT total(age) FROM pets").value(), from == 0 ? 0 : from == 3 ? 1 : 10);
    auto again = open();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->integer("SELECT total(age) FROM pets").value(), from == 0 ? 0 : from == 3 ? 1 : 10);
  }
}

TEST_F(SqliteTest, AFailedStepLeavesTheOldVersion) {
  ASSERT_TRUE(open(1)->run("INSERT INTO pets (name) VALUES ('Rex')"));
  std::array<std::string_view, 2> bad = {kSteps[0], "DELETE FROM pets; CREATE TABLE pets (oops);"};
  auto failed = Database::open(path_, {.application_id = 77, .what = "zoo", .steps = bad}, Sync::normal);
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("from version 1 to 2"), std::string::npos) << failed.error().message;
  auto db = open(1);
  ASSERT_TRUE(db);
  EXPECT_EQ(db->integer("PRAGMA user_version").value(), 1);
  EXPECT_EQ(db->integer("SELECT count(*) FROM pets").value(), 1);
}

TEST_F(SqliteTest, RefusesANewerForm) {
  ASSERT_TRUE(open(3));
  auto old = open(2);
  ASSERT_FALSE(old);
  EXPECT_EQ(old.error().code, Code::unsupported);
  EXPECT_NE(old.error().message.find("newer Isola (version 3 of its form, this one knows up to 2)"), std::string::npos)
      << old.error().message;
}

TEST_F(SqliteTest, RefusesTheFileOfSomethingElse) {
  ASSERT_TRUE(open());
  auto other = Database::open(path_, {.application_id = 78, .what = "store", .steps = kSteps}, Sync::normal);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::invalid);
  EXPECT_NE(other.error().message.find("a database of something else"), std::string::npos) << other.error().message;
}

TEST_F(SqliteTest, ADamagedFileIsSaidSo) {
  std::ofstream(path_) << std::string(8192, 'x');
  auto db = open();
  ASSERT_FALSE(db);
  EXPECT_EQ(db.error().code, Code::corrupt);
  EXPECT_NE(db.error().message.find("is damaged or is not one"), std::string::npos) << db.error().message;
  EXPECT_NE(db.error().message.find(path_), std::string::npos);
}

TEST_F(SqliteTest, DamageInsideIsSaidSo) {
  {
    auto db = open();
    ASSERT_TRUE(db);
    ASSERT_TRUE(
        db->run("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) "
                "INSERT INTO pets SELECT 'pet' || i, i FROM n"));
  }
  auto size = std::filesystem::file_size(path_);
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  for (uint64_t at = 4096; at + 64 < size; at += 4096)
    file.seekp(static_cast<std::streamoff>(at)) << std::string(64, '\xee');
  file.close();
  auto db = open();
  Code code = db ? db->integer("SELECT total(age) FROM pets").error().code : db.error().code;
  EXPECT_EQ(code, Code::corrupt);
}

TEST_F(SqliteTest, NoFolderNoFile) {
  auto db = Database::open(folder_ / "missing/zoo.db", schema_of(3), Sync::full);
  ASSERT_FALSE(db);
  EXPECT_EQ(db.error().code, Code::not_found);
}

}  // namespace
}  // namespace isola::sqlite
