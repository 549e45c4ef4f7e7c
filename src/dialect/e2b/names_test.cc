#include "dialect/e2b/names.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

TEST(Names, OnlyTheTagThatEverythingHasIsNone) {
  EXPECT_EQ(without_tag("x:default"), "x");
  EXPECT_EQ(without_tag("x:latest"), "x:latest");
  EXPECT_EQ(without_tag("x"), "x");
  EXPECT_EQ(plain_name("x:v1"), "x");
  EXPECT_EQ(plain_name("x"), "x");
}

}  // namespace
}  // namespace isola::e2b
