#include "dialect/native/shares.h"

#include <gtest/gtest.h>

namespace isola::native {
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

}  // namespace
}  // namespace isola::native
