#include "dialect/e2b/tokens.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

TEST(Tokens, SignsAsTheClientsDo) {
  auto signature = sign_path("0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0", "read", "hello.txt", "user", std::nullopt);
  ASSERT_TRUE(signature);
  EXPECT_EQ(*signature, "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E");
}

TEST(Tokens, EveryPartOfASignatureCounts) {
  auto base = *sign_path("t", "read", "p", "u", 5);
  EXPECT_NE(base, *sign_path("x", "read", "p", "u", 5));
  EXPECT_NE(base, *sign_path("t", "write", "p", "u", 5));
  EXPECT_NE(base, *sign_path("t", "read", "q", "u", 5));
  EXPECT_NE(base, *sign_path("t", "read", "p", "", 5));
  EXPECT_NE(base, *sign_path("t", "read", "p", "u", 6));
  EXPECT_NE(base, *sign_path("t", "read", "p", "u", std::nullopt));
}

TEST(Tokens, AnAccessTokenNamesItsSandboxAndDependsOnTheSecret) {
  std::string id = "iabcdefghij0123456789";
  auto token = access_token("secret", id, 0);
  EXPECT_EQ(token_names(token), id);
  EXPECT_EQ(token, access_token("secret", id, 0));
  EXPECT_NE(token, access_token("other", id, 0));
  EXPECT_NE(token, access_token("secret", "iabcdefghij012345678x", 0));
  EXPECT_EQ(access_token("", id, 0), "");
  EXPECT_EQ(token_names("ea_short"), "");
  EXPECT_EQ(token_names(""), "");
}

TEST(Tokens, AnUploadIsForOnePlaceAndOneTime) {
  auto token = upload_token("secret", "p", "h", "k", "100");
  EXPECT_EQ(token, upload_token("secret", "p", "h", "k", "100"));
  EXPECT_NE(token, upload_token("secret", "p", "h", "k", "101"));
  EXPECT_NE(token, upload_token("secret", "p", "x", "k", "100"));
  EXPECT_NE(token, upload_token("secret", "p", "h", "x", "100"));
}

TEST(Tokens, OneEndsWithTheKeyThatMadeItsSandbox) {
  store::Millis revoked = 0;
  Tokens tokens("secret", [&](const std::string& key) { return key == "kmaker" ? revoked : 0; });
  std::string first = tokens.of("iabcdefghij0123456789", "kmaker"), other = tokens.of("iabcdefghij012345678x", "kelse");
  EXPECT_EQ(first, access_token("secret", "iabcdefghij0123456789", 0));
  EXPECT_EQ(tokens.of("iabcdefghij0123456789", "kmaker"), first);
  revoked = 17;
  std::string second = tokens.of("iabcdefghij0123456789", "kmaker");
  EXPECT_NE(second, first);
  EXPECT_EQ(token_names(second), "iabcdefghij0123456789");
  EXPECT_EQ(tokens.of("iabcdefghij012345678x", "kelse"), other);
}

}  // namespace
}  // namespace isola::e2b
