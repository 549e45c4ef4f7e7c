// What the tests of this room share: a folder that goes, and example records.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/ids.h"
#include "store/sqlite_store.h"

namespace isola::store {

class TempFolder {
 public:
  TempFolder() {
    char name[] = "/tmp/isola-store-XXXXXX";
    if (!::mkdtemp(name)) std::abort();
    path_ = name;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline bool full_suite() { return ::getenv("ISOLA_TEST_FULL") != nullptr; }

inline SandboxRecord example(const std::string& project = "default", Millis created = 1000) {
  return {.id = new_sandbox_id(), .project = project, .created = created};
}

class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    reopen();
    ASSERT_TRUE(store_->insert_project({.id = "default", .name = "default", .created = 1}));
  }
  void reopen() {
    store_.reset();
    auto opened = SqliteStore::open(path());
    ASSERT_TRUE(opened) << opened.error().message;
    store_ = std::move(*opened);
  }
  std::string path() const { return folder_ / "store.db"; }

  TempFolder folder_;
  std::unique_ptr<SqliteStore> store_;
};

}  // namespace isola::store
