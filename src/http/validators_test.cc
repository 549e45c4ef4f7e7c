#include "http/validators.h"

#include <gtest/gtest.h>

namespace isola::http {
namespace {

constexpr int64_t kThen = 784111777;
const Validators kNow{.tag = "W/\"5-18\"", .modified = kThen};

TEST(Validators, ADateIsReadBack) {
  EXPECT_EQ(to_date(kThen), "Sun, 06 Nov 1994 08:49:37 GMT");
  EXPECT_EQ(parse_date("Sun, 06 Nov 1994 08:49:37 GMT"), kThen);
  for (const char* wrong : {"", "x", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:37",
                            "Sun, 06 Nov 1994 08:49:37 GMT x", "Sun, 6 Nov 1994 08:49:37 GMT"})
    EXPECT_EQ(parse_date(wrong), std::nullopt) << wrong;
}

TEST(Validators, ATagIsComparedWeakly) {
  for (const char* same : {"W/\"5-18\"", "\"5-18\"", "\"x\" , W/\"5-18\"", "*", " * "})
    EXPECT_TRUE(kNow.match(same, "")) << same;
  for (const char* other : {"\"5-1\"", "5-18", "\"x\",\"y\"", ","}) EXPECT_FALSE(kNow.match(other, "")) << other;
}

TEST(Validators, ATimeCountsWhereThereIsNoTag) {
  EXPECT_TRUE(kNow.match("", to_date(kThen)));
  EXPECT_TRUE(kNow.match("", to_date(kThen + 1)));
  EXPECT_FALSE(kNow.match("", to_date(kThen - 1)));
  EXPECT_FALSE(kNow.match("", "yesterday"));
  EXPECT_FALSE(kNow.match("", ""));
  EXPECT_FALSE(kNow.match("\"x\"", to_date(kThen))) << "the tag decides";
}

TEST(Validators, APartIsSentOfWhatIsSurelyTheSame) {
  EXPECT_TRUE(kNow.range_meant(""));
  EXPECT_TRUE(kNow.range_meant(to_date(kThen)));
  for (const std::string& other :
       {to_date(kThen + 1), std::string("W/\"5-18\""), std::string("\"5-18\""), std::string("x")})
    EXPECT_FALSE(kNow.range_meant(other)) << other;
}

}  // namespace
}  // namespace isola::http
