#include "dialect/e2b/interpreter.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace isola::e2b {
namespace {

using nlohmann::json;

TEST(Interpreter, ResultsAsTheirClientsReadThem) {
  json event = {
      {"type", "result"},
      {"main", true},
      {"data",
       {{"text/plain", "'abc'"},
        {"text/html", "<b>"},
        {"image/png", "aGk=\n"},
        {"application/vnd.custom", 5},
        {"application/vnd.isola.chart+json", {{"type", "line"}}},
        {"application/vnd.isola.frame+json",
         {{"columns", {{{"name", "a"}}, {{"name", "b"}}}}, {"records", {{{"a", 1}, {"b", "x"}}, {{"a", 2}}}}}}}}};
  json out = translated(event);
  EXPECT_EQ(out["is_main_result"], true);
  EXPECT_EQ(out["text"], "abc");
  EXPECT_EQ(out["html"], "<b>");
  EXPECT_EQ(out["png"], "aGk=");
  EXPECT_EQ(out["application/vnd.custom"], 5);
  EXPECT_EQ(out["chart"]["type"], "line");
  EXPECT_EQ(out["data"], json({{"a", {1, 2}}, {"b", {"x", nullptr}}}));
}

TEST(Interpreter, ErrorsAndMarks) {
  json out = translated({{"type", "error"}, {"name", "E"}, {"value", "v"}, {"traceback", {"one", "two"}}});
  EXPECT_EQ(out["traceback"], "one\ntwo");
  EXPECT_EQ(translated({{"type", "ping"}})["type"], "keepalive");
  EXPECT_EQ(translated({{"type", "truncated"}, {"limit_bytes", 5}})["type"], "stderr");
  EXPECT_TRUE(translated({{"type", "start"}}).is_null());
  EXPECT_TRUE(translated({{"type", "end"}}).is_null());
}

// What comes from inside a sandbox can have any shape.
TEST(Interpreter, OddShapesDoNoHarm) {
  for (const json& event :
       {json({{"type", "result"}}), json({{"type", "result"}, {"data", 5}}), json({{"type", 5}}), json::object(),
        json({{"type", "result"}, {"data", {{"application/vnd.isola.frame+json", "no"}}}}),
        json({{"type", "error"}, {"traceback", "no"}}), json({{"type", "stdout"}, {"text", 5}})})
    (void)translated(event);
}

}  // namespace
}  // namespace isola::e2b
