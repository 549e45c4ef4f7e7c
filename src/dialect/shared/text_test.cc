#include "dialect/shared/text.h"

#include <gtest/gtest.h>

namespace isola::dialect {
namespace {

TEST(TextTest, TimesAreDateTimesBefore1970Too) {
  EXPECT_EQ(when(0), "1970-01-01T00:00:00.000Z");
  EXPECT_EQ(when(1'700'000'000'123), "2023-11-14T22:13:20.123Z");
  EXPECT_EQ(when(-1), "1969-12-31T23:59:59.999Z");
  EXPECT_EQ(when(-1500), "1969-12-31T23:59:58.500Z");
  EXPECT_EQ(when(-86'400'000), "1969-12-31T00:00:00.000Z");
}

}  // namespace
}  // namespace isola::dialect
