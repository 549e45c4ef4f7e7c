#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/register.h"

namespace isola::cli {
namespace {

TEST(Labels, NamesAndValues) {
  auto labels = parse_labels({"A=1", "B=x=y", "C="}, "--env");
  ASSERT_TRUE(labels);
  EXPECT_EQ(*labels, (nlohmann::json{{"A", "1"}, {"B", "x=y"}, {"C", ""}}));
  for (const char* bad : {"A", "=1", ""}) EXPECT_FALSE(parse_labels({bad}, "--env")) << bad;
  EXPECT_EQ(parse_labels({"A"}, "--env").error().message, "--env A: write it as NAME=value");
}

TEST(Quoted, OnlyWhatNeedsIt) {
  EXPECT_EQ(quoted("ls"), "ls");
  EXPECT_EQ(quoted("a b"), "'a b'");
  EXPECT_EQ(quoted(""), "''");
  EXPECT_EQ(quoted("it's $HOME"), "'it'\\''s $HOME'");
  EXPECT_EQ(quoted("a\nb"), "'a\nb'");
}

}  // namespace
}  // namespace isola::cli
