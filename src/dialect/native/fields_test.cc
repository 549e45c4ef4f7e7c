#include "dialect/native/fields.h"

#include <gtest/gtest.h>

namespace isola::native {
namespace {

std::string complaint(std::string_view body, const std::function<void(Fields&)>& read = {}) {
  auto fields = Fields::parse(body);
  if (!fields) return fields.error().message;
  if (read) read(*fields);
  auto done = fields->done();
  return done ? "" : done.error().message;
}

TEST(Fields, MalformedJsonNamesThePlace) {
  EXPECT_EQ(complaint("{\"a\": }"), "the body is not valid JSON at line 1, column 7");
  EXPECT_EQ(complaint("{\n  \"a\": 1,\n  oops\n}"), "the body is not valid JSON at line 3, column 3");
  EXPECT_NE(complaint("{\"a\": 1} trailing").find("line 1"), std::string::npos);
  EXPECT_EQ(complaint("[]"), "the body must be a JSON object");
  EXPECT_EQ(complaint(""), "");
  EXPECT_EQ(complaint(" \n "), "");
}

TEST(Fields, NestingIsBounded) {
  std::string deep(200000, '[');
  EXPECT_NE(complaint(deep).find("deep"), std::string::npos);
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_NE(complaint(objects).find("deep"), std::string::npos);
  EXPECT_EQ(complaint(R"({"a": "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["})",
                      [](Fields& f) { f.text("a"); }),
            "");
}

TEST(Fields, WhatNobodyReadIsRefusedByName) {
  EXPECT_EQ(complaint(R"({"name": "x", "nmae": "y"})", [](Fields& f) { f.text("name"); }),
            "there is no field \"nmae\" here");
  EXPECT_EQ(complaint(R"({"budget": {"cpus": 1}})",
                      [](Fields& f) {
                        auto inner = f.object("budget");
                        f.adopt(*inner, "budget");
                      }),
            "there is no field \"budget.cpus\" here");
}

TEST(Fields, TypesAreChecked) {
  auto wrong = [](const char* body, auto read) { return complaint(body, read); };
  EXPECT_EQ(wrong(R"({"a": 1})", [](Fields& f) { f.text("a"); }), "a: must be a string");
  EXPECT_EQ(wrong(R"({"a": "1"})", [](Fields& f) { f.count("a"); }), "a: must be a whole number, zero or more");
  EXPECT_EQ(wrong(R"({"a": -1})", [](Fields& f) { f.count("a"); }), "a: must be a whole number, zero or more");
  EXPECT_EQ(wrong(R"({"a": 1.5})", [](Fields& f) { f.count("a"); }), "a: must be a whole number, zero or more");
  EXPECT_EQ(wrong(R"({"a": 7})", [](Fields& f) { f.count("a", 6); }), "a: must be at most 6");
  EXPECT_EQ(wrong(R"({"a": "yes"})", [](Fields& f) { f.flag("a"); }), "a: must be true or false");
  EXPECT_EQ(wrong(R"({"a": [1]})", [](Fields& f) { f.texts("a"); }), "a: must be a list of strings");
  EXPECT_EQ(wrong(R"({"a": {"b": 1}})", [](Fields& f) { f.labels("a"); }), "a: the value of \"b\" must be a string");
  EXPECT_EQ(wrong(R"({"a": -1})", [](Fields& f) { f.seconds("a"); }), "a: must be between 0 and ten years");
  EXPECT_EQ(wrong(R"({"a": 1e300})", [](Fields& f) { f.seconds("a"); }), "a: must be between 0 and ten years");
  EXPECT_NE(wrong(R"({"a": "lots"})", [](Fields& f) { f.size("a"); }), "");
}

TEST(Fields, ValuesAreRead) {
  auto fields = Fields::parse(
      R"({"t": "x", "n": 1.5, "c": 3, "f": true, "s": 2.5, "m": "10m", "b": "64M", "l": ["a", "b"], "o": {"k": "v"}, "z": null})");
  ASSERT_TRUE(fields);
  EXPECT_EQ(fields->text("t"), "x");
  EXPECT_EQ(fields->number("n"), 1.5);
  EXPECT_EQ(fields->count("c"), 3u);
  EXPECT_TRUE(fields->flag("f"));
  EXPECT_EQ(fields->seconds("s"), 2500);
  EXPECT_EQ(fields->seconds("m"), 600000);
  EXPECT_EQ(fields->size("b"), 64u << 20);
  EXPECT_EQ(fields->texts("l"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(fields->labels("o"), (store::Labels{{"k", "v"}}));
  EXPECT_EQ(fields->text("z", "otherwise"), "otherwise");
  EXPECT_TRUE(fields->done());
}

}  // namespace
}  // namespace isola::native
