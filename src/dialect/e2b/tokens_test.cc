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
  auto token = access_token("secret", id);
  EXPECT_EQ(token_names(token), id);
  EXPECT_EQ(token, access_token("secret", id));
  EXPECT_NE(token, access_token("other", id));
  EXPECT_NE(token, access_token("secret", "iabcdefghij012345678x"));
  EXPECT_EQ(access_token("", id), "");
  EXPECT_EQ(token_names("ea_short"), "");
  EXPECT_EQ(token_names(""), "");
}

}  // namespace
}  // namespace isola::e2b
