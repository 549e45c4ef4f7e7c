// What the tests of this room share.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "ledger/ledger.h"
#include "ledger/ratchet.h"
#include "ledger/schema.h"

namespace isola::ledger {

inline bool full_suite() { return ::getenv("ISOLA_TEST_FULL") != nullptr; }

class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-ledger-XXXXXX";
    ASSERT_TRUE(::mkdtemp(name));
    folder_ = name;
    ASSERT_TRUE(provide_key(path(), key_path(), ::getuid(), ::getgid()));
    reopen();
  }
  void TearDown() override {
    ledger_.reset();
    std::filesystem::remove_all(folder_);
  }
  void reopen(const LedgerOptions& options = {}) {
    ledger_.reset();
    auto opened = Ledger::open(path(), options);
    ASSERT_TRUE(opened) << opened.error().message;
    ledger_ = std::move(*opened);
  }
  std::string path() const { return folder_ + "/ledger.db"; }
  std::string key_path() const { return folder_ + "/ledger.key"; }
  VerificationKeys keys() const { return VerificationKeys::read(key_path()).value(); }

  static Event event(const std::string& sandbox, Kind kind = Kind::command_started, Millis time = 1000) {
    return {.time = time, .project = "p", .sandbox = sandbox, .task = "t", .actor = "a", .kind = kind};
  }
  void add(int count) {
    for (int i = 0; i < count; ++i) {
      auto e = event(fmt::format("i{}", i % 3));
      e.data = fmt::format(R"({{"n":{}}})", i);
      ASSERT_TRUE(ledger_->append(e));
    }
    ASSERT_TRUE(ledger_->flush());
  }

  std::string folder_;
  std::unique_ptr<Ledger> ledger_;
};

}  // namespace isola::ledger
