#include "cli/table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/clock.h"

namespace isola::cli {
namespace {

using nlohmann::json;

TEST(Table, AlignsByCharactersAndLeavesNoBlanksBehind) {
  Table table({"ID", "NAME", "STATE"});
  EXPECT_TRUE(table.empty());
  table.add({"i1", "größe", "running"});
  table.add({"i22222", "x", ""});
  EXPECT_FALSE(table.empty());
  EXPECT_EQ(table.text(),
            "ID      NAME   STATE\n"
            "i1      größe  running\n"
            "i22222  x\n");
}

TEST(Table, AStrangersTextNeitherSteersTheTerminalNorBreaksTheLine) {
  Table table({"COMMAND"});
  table.add({"echo \x1b[2J\x1b]0;title\x07hi\nsecond\tthird\r"});
  EXPECT_EQ(table.text(), "COMMAND\necho hi second third\n");
}

TEST(Times, Short) {
  EXPECT_EQ(short_span(0), "0s");
  EXPECT_EQ(short_span(59'499), "59s");
  EXPECT_EQ(short_span(59'999), "1m");
  EXPECT_EQ(short_span(60'000), "1m");
  EXPECT_EQ(short_span(89'000), "1m");
  EXPECT_EQ(short_span(119'000), "2m");
  EXPECT_EQ(short_span(3'599'000), "1h");
  EXPECT_EQ(short_span(7'100'000), "2h");
  EXPECT_EQ(short_span(3'600'000), "1h");
  EXPECT_EQ(short_span(47 * 3'600'000LL), "47h");
  EXPECT_EQ(short_span(48 * 3'600'000LL), "2d");
  EXPECT_EQ(short_span(71 * 3'600'000LL), "3d");
  EXPECT_EQ(relative(200'000, 20'000), "3m ago");
  EXPECT_EQ(relative(20'000, 200'000), "in 3m");
  EXPECT_EQ(relative(1500, 1000), "now");
}

TEST(Times, Parse) {
  EXPECT_EQ(parse_moment("1970-01-01T00:00:01.250Z"), 1250);
  EXPECT_EQ(parse_moment("2026-01-31T12:00:00Z"), 1769860800000);
  EXPECT_FALSE(parse_moment("2026-01-31"));
  EXPECT_FALSE(parse_moment("yesterday"));
  EXPECT_EQ(*query_moment("2026-01-31"), "2026-01-31");
  auto hour = query_moment("1h");
  ASSERT_TRUE(hour);
  auto moment = parse_moment(*hour);
  ASSERT_TRUE(moment);
  EXPECT_NEAR(static_cast<double>(milliseconds_now() - *moment), 3'600'000, 60'000);
  EXPECT_FALSE(query_moment("soon"));
}

TEST(JsonWords, OfEveryKind) {
  json object = {{"s", "x"}, {"n", 3}, {"f", 1.5}, {"b", true}, {"z", nullptr}, {"o", {{"a", "1"}, {"b", "2"}}}};
  EXPECT_EQ(text_of(object, "s"), "x");
  EXPECT_EQ(text_of(object, "n"), "3");
  EXPECT_EQ(text_of(object, "f"), "1.5");
  EXPECT_EQ(text_of(object, "b"), "true");
  EXPECT_EQ(text_of(object, "z"), "-");
  EXPECT_EQ(text_of(object, "missing", ""), "");
  EXPECT_EQ(text_of(json("text"), "s", "none"), "none");
  EXPECT_EQ(join_labels(object["o"]), "a=1,b=2");
}

}  // namespace
}  // namespace isola::cli
