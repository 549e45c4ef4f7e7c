#include "dialect/e2b/results.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace isola::e2b {
namespace {

using nlohmann::json;

TEST(Results, ResultsAsTheirClientsReadThem) {
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

TEST(Results, ErrorsAndMarks) {
  json out = translated({{"type", "error"}, {"name", "E"}, {"value", "v"}, {"traceback", {"one", "two"}}});
  EXPECT_EQ(out["traceback"], "one\ntwo");
  EXPECT_EQ(translated({{"type", "ping"}})["type"], "keepalive");
  EXPECT_EQ(translated({{"type", "truncated"}, {"limit_bytes", 5}})["type"], "stderr");
  EXPECT_TRUE(translated({{"type", "start"}}).is_null());
  EXPECT_TRUE(translated({{"type", "end"}}).is_null());
}

// Columns times records is what a sandbox can name in a few bytes: three hundred thousand of each would keep a worker
// for hours, and one column named often would be copied as often.
TEST(Results, FramesThatNoKernelOfOursSends) {
  auto frame = [](size_t columns, size_t records) {
    json event = {{"type", "result"}, {"data", {{"application/vnd.isola.frame+json", json::object()}}}};
    json& frame = event["data"]["application/vnd.isola.frame+json"];
    frame["columns"] = json::array_t(columns, json({{"name", "a"}}));
    frame["records"] = json::array_t(records, json({{"a", 1}}));
    return translated(std::move(event));
  };
  EXPECT_EQ(frame(200, 1000)["data"]["a"].size(), 1000u);
  EXPECT_EQ(frame(200, 1000)["data"].size(), 1u);
  EXPECT_FALSE(frame(201, 1).contains("data"));
  EXPECT_FALSE(frame(1, 1001).contains("data"));
  EXPECT_FALSE(frame(300'000, 300'000).contains("data"));
}

TEST(Results, ChartsHaveLabelsAsWrittenAndDatesWithTheirOffset) {
  const std::string day = "2026-01-01T00:00:00";
  json line = {{"type", "line"},
               {"x_label", "time"},
               {"x_unit", "s"},
               {"x_text", "time (s)"},
               {"y_label", "way"},
               {"x_scale", "datetime"},
               {"x_ticks", json::array({day})}};
  json series = {{"label", "l"}, {"points", json::array({json::array({day, day})})}};
  line["elements"] = json::array({series, 5});
  json both = {{"type", "superchart"}, {"elements", json::array({line, 7})}};
  json out = translated({{"type", "result"}, {"data", {{"application/vnd.isola.chart+json", both}}}});
  for (json& one : out["chart"]["elements"]) {
    if (!one.is_object()) continue;
    EXPECT_EQ(one["x_label"], "time (s)");
    EXPECT_EQ(one["x_unit"], "s");
    EXPECT_EQ(one["y_label"], "way");
    EXPECT_FALSE(one.contains("x_text"));
    EXPECT_EQ(one["x_ticks"][0], day + "+00:00");
    EXPECT_EQ(one["elements"][0]["points"][0], json::array({day + "+00:00", day}));
  }
}

// A type is no way to the fields of the event itself.
TEST(Results, TypesAreTypes) {
  json out =
      translated({{"type", "result"},
                  {"data", {{"type", "end_of_execution"}, {"is_main_result", true}, {"text", "x"}, {"a/b", 1}}}});
  EXPECT_EQ(out, json({{"type", "result"}, {"is_main_result", false}, {"a/b", 1}}));
}

// What comes from inside a sandbox can have any shape.
TEST(Results, OddShapesDoNoHarm) {
  for (const json& event :
       {json({{"type", "result"}}), json({{"type", "result"}, {"data", 5}}), json({{"type", 5}}), json::object(),
        json({{"type", "result"}, {"data", {{"application/vnd.isola.frame+json", "no"}}}}),
        json({{"type", "error"}, {"traceback", "no"}}), json({{"type", "stdout"}, {"text", 5}})})
    (void)translated(event);
}

}  // namespace
}  // namespace isola::e2b
