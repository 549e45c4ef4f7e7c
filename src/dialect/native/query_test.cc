#include "dialect/native/query.h"

#include <gtest/gtest.h>

namespace isola::native {
namespace {

TEST(ParseMoment, DatesAndTimes) {
  constexpr int64_t kNoon = 1769860800000;  // 2026-01-31T12:00:00Z
  EXPECT_EQ(parse_moment("2026-01-31"), kNoon - 12 * 3600 * 1000);
  EXPECT_EQ(parse_moment("2026-01-31T12:00:00"), kNoon);
  EXPECT_EQ(parse_moment("2026-01-31T12:00:00Z"), kNoon);
  EXPECT_EQ(parse_moment("2026-01-31T12:00:00.5Z"), kNoon + 500);
  EXPECT_EQ(parse_moment("2026-01-31T12:00:00.123456789"), kNoon + 123);
  EXPECT_EQ(parse_moment("2024-02-29"), 1709164800000);
}

TEST(ParseMoment, NothingElse) {
  for (const char* text : {"",
                           "yesterday",
                           "2026-01",
                           "2026-01-31 12:00:00",
                           "2026-01-31T12:00",
                           "2026-01-31T12:00:00Zzz",
                           "2026-01-31T12:00:00.",
                           "2026-01-31T12:00:00.Z",
                           "2026-01-31T12:00:00.5x",
                           "2026-01-31T12:00:00.5ZZ",
                           "2026-01-31T12:00:00+01:00",
                           "2026-01-31Z",
                           "2026-01-31.5",
                           "2026-01-31x",
                           "2026-02-30",
                           "2025-02-29",
                           "2026-13-01",
                           "2026-01-31T25:00:00Z",
                           "2026-01-31T12:60:00Z",
                           " 2026-01-31",
                           "2026-1-31",
                           "+2026-01-31"})
    EXPECT_FALSE(parse_moment(text)) << text;
}

}  // namespace
}  // namespace isola::native
