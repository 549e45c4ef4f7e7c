#include "vault/signing_keys.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace isola::vault {
namespace {

using nlohmann::json;

class SigningKeysTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/isola-signing-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path() const { return folder_ + "/signing"; }
  static SigningKeys::One one(const std::string& id, int64_t created) {
    return {id, created, json{{"kty", "RSA"}, {"kid", id}}.dump(), "sealed " + id};
  }
  static std::vector<std::string> published(const SigningKeys& keys, int64_t now) {
    std::vector<std::string> ids;
    const json all = json::parse(keys.published(now));
    for (const auto& key : all.at("keys")) ids.push_back(key.at("kid"));
    return ids;
  }
  using Ids = std::vector<std::string>;
  std::string folder_;
};

TEST_F(SigningKeysTest, TheFirstSignsAtOnce) {
  auto keys = SigningKeys::open(path()).value();
  EXPECT_TRUE(keys.empty());
  EXPECT_EQ(keys.current(0), nullptr);
  ASSERT_TRUE(keys.add(one("a", 1000), 1000, false));
  EXPECT_EQ(keys.current(1000)->id, "a");
  EXPECT_EQ(published(keys, 1000), Ids{"a"});
}

TEST_F(SigningKeysTest, AnotherIsPublishedBeforeItSignsAndTheOldOneForAsLongAsItsTokensLive) {
  auto keys = SigningKeys::open(path()).value();
  ASSERT_TRUE(keys.add(one("a", 1000), 1000, false));
  const int64_t then = 50'000, begins = then + SigningKeys::kAhead, over = begins + SigningKeys::kBehind;
  ASSERT_TRUE(keys.add(one("b", then), then, false));
  EXPECT_EQ(keys.current(then)->id, "a");
  EXPECT_EQ(keys.current(begins - 1)->id, "a");
  EXPECT_EQ(keys.current(begins)->id, "b");
  EXPECT_EQ(published(keys, then), (Ids{"a", "b"}));
  EXPECT_EQ(published(keys, over - 1), (Ids{"a", "b"}));
  EXPECT_EQ(published(keys, over), Ids{"b"});
  EXPECT_GE(SigningKeys::kBehind, kLongestLife);
  // And it is forgotten by the next.
  ASSERT_TRUE(keys.add(one("c", over), over, false));
  EXPECT_EQ(keys.all().size(), 2u);
}

TEST_F(SigningKeysTest, OneThatWasStolenIsForgottenAtOnce) {
  auto keys = SigningKeys::open(path()).value();
  ASSERT_TRUE(keys.add(one("a", 1000), 1000, false));
  ASSERT_TRUE(keys.add(one("b", 2000), 2000, true));
  EXPECT_EQ(keys.current(2000)->id, "b");
  EXPECT_EQ(published(keys, 2000), Ids{"b"});
  EXPECT_EQ(read_file(path()).value().find("\"a\""), std::string::npos);
}

TEST_F(SigningKeysTest, OutlivesTheProcessAndIsRootsAlone) {
  {
    auto keys = SigningKeys::open(path()).value();
    ASSERT_TRUE(keys.add(one("a", 1000), 1000, false));
    ASSERT_TRUE(keys.add(one("b", 2000), 2000, false));
    ASSERT_TRUE(keys.reseal({"x", "y"}));
    EXPECT_FALSE(keys.reseal({"x"}));
  }
  struct stat about{};
  ASSERT_EQ(::stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  auto keys = SigningKeys::open(path()).value();
  ASSERT_EQ(keys.all().size(), 2u);
  EXPECT_EQ(keys.all()[1].id, "b");
  EXPECT_EQ(keys.all()[1].created, 2000);
  EXPECT_EQ(keys.all()[1].sealed, "y");
}

TEST_F(SigningKeysTest, RefusesAFileThatIsDamaged) {
  for (const char* odd :
       {"", "[]", "{}", R"({"keys":[{}]})", R"({"keys":[{"jwk":{"kid":"a"},"created":1,"sealed":"!"}]})"}) {
    ASSERT_TRUE(replace_file(path(), odd));
    EXPECT_FALSE(SigningKeys::open(path())) << odd;
  }
}

}  // namespace
}  // namespace isola::vault
