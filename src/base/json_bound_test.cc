#include "base/json_bound.h"

#include <gtest/gtest.h>

#include <string>

namespace isola {
namespace {

std::string many(size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += i ? ",[]" : "[]";
  return text + "]";
}

TEST(JsonBound, CountsValuesAndDepth) {
  EXPECT_TRUE(check_json_bound(""));
  EXPECT_TRUE(check_json_bound(R"({"a": [1, 2, {"b": null}]})"));
  EXPECT_TRUE(check_json_bound(many(1000)));
  EXPECT_FALSE(check_json_bound(many(100'000)));
  EXPECT_TRUE(check_json_bound(std::string(64, '[')));
  EXPECT_FALSE(check_json_bound(std::string(65, '[')));
  std::string keys = "{";
  for (int i = 0; i < 60'000; ++i) keys += "\"k\":0,";
  EXPECT_FALSE(check_json_bound(keys));
}

TEST(JsonBound, WhatStandsInTextsIsText) {
  std::string text = "[\"" + std::string(200'000, ',') + "\"]";
  EXPECT_TRUE(check_json_bound(text));
  EXPECT_TRUE(check_json_bound("[\"" + std::string(100, '[') + "\"]"));
  // An escaped quote does not end it, an escaped backslash does not escape the quote behind it.
  EXPECT_TRUE(check_json_bound(R"(["\")" + std::string(100, '[') + "\"]"));
  EXPECT_FALSE(check_json_bound(R"(["\\")" + std::string(100, '[')));
}

}  // namespace
}  // namespace isola
