#include "dialect/shared/base64.h"

#include <gtest/gtest.h>

#include <vector>

namespace isola::dialect {

TEST(Base64, GoesBothWays) {
  const std::vector<std::string> texts = {"", "a", "ab", "abc", "abcd", std::string("\0\xff\x80", 3)};
  for (const auto& text : texts) EXPECT_EQ(from_base64(base64(text)), text);
  EXPECT_EQ(from_base64("_-8"), from_base64("/+8="));
  EXPECT_FALSE(from_base64("a"));
  EXPECT_FALSE(from_base64("ab!="));
}

}  // namespace isola::dialect
