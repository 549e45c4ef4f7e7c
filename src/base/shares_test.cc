#include "base/shares.h"

#include <gtest/gtest.h>

namespace isola {
namespace {

TEST(Shares, OneProjectHasOnlySoMuch) {
  Shares shares(100);
  auto first = shares.of("a");
  EXPECT_EQ(first.take(60), 60u);
  {
    auto second = shares.of("a");
    EXPECT_EQ(second.take(60), 40u);
    EXPECT_EQ(second.take(1), 0u);
    EXPECT_EQ(first.take(1), 0u);
    EXPECT_EQ(shares.of("b").take(100), 100u);  // another one's
  }
  EXPECT_EQ(first.take(50), 40u);  // what the second had
}

TEST(Shares, AllOfItOrNothing) {
  Shares shares(100);
  auto first = shares.of("a");
  ASSERT_TRUE(first.take_all(60, "input"));
  auto second = shares.of("a");
  auto refused = second.take_all(41, "input");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::exhausted);
  EXPECT_TRUE(second.take_all(40, "input"));  // nothing of what was refused is missing
  {
    auto heir = std::move(first);
    EXPECT_FALSE(shares.of("a").take_all(1, "input"));  // it is had once
  }
  EXPECT_TRUE(shares.of("a").take_all(60, "input"));
}

TEST(Shares, WhoHasNothingIsForgotten) {
  Shares shares(100);
  auto kept = shares.of("kept");
  ASSERT_EQ(kept.take(60), 60u);
  for (size_t i = 0; i < 100 * Shares::kFew; ++i) (void)shares.of(std::to_string(i));
  EXPECT_LE(shares.known(), Shares::kFew);
  EXPECT_EQ(shares.of("kept").take(100), 40u);
}

}  // namespace
}  // namespace isola
