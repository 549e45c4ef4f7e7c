#include <gtest/gtest.h>

#include "base/log_lines.h"

namespace isola::log {
namespace {

const std::string kSecret = "e2b_" + std::string(40, 'a');

TEST(Log, KeysAreMaskedWhereverTheyStand) {
  for (auto format : {Format::text, Format::json}) {
    auto text = line(format, 0, Level::info, "http", "GET /v1/keys/" + kSecret + " id=" + kSecret + "b, e2b_cli e2b_");
    EXPECT_EQ(text.find("aaaa"), std::string::npos) << text;
    EXPECT_NE(text.find("GET /v1/keys/e2b_*** id=e2b_***, e2b_cli e2b_"), std::string::npos) << text;
  }
}

TEST(Log, LinesOfBothForms) {
  EXPECT_EQ(line(Format::text, 1'500, Level::warn, "gate", "x \"y\""), "1970-01-01T00:00:01.500Z warn gate: x \"y\"\n");
  EXPECT_EQ(line(Format::json, 1'500, Level::warn, "gate", "x \"y\"\\\n"),
            "{\"time\":\"1970-01-01T00:00:01.500Z\",\"level\":\"warn\",\"room\":\"gate\","
            "\"message\":\"x \\\"y\\\"\\\\\\u000a\"}\n");
}

TEST(Log, FieldsStandByThemselves) {
  Fields fields = {{"request_id", "5f0c"}, {"status", "200", true}, {"host", "a b"}, {"key", kSecret}, {"none", ""}};
  EXPECT_EQ(line(Format::text, 0, Level::info, "http", "GET", fields),
            "1970-01-01T00:00:00.000Z info http: GET request_id=5f0c status=200 host=\"a b\" key=e2b_*** none=\"\"\n");
  EXPECT_EQ(line(Format::json, 0, Level::info, "http", "GET", fields),
            "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"info\",\"room\":\"http\",\"message\":\"GET\","
            "\"request_id\":\"5f0c\",\"status\":200,\"host\":\"a b\",\"key\":\"e2b_***\",\"none\":\"\"}\n");
}

TEST(Log, NoValueForgesAnotherField) {
  auto text = line(Format::text, 0, Level::info, "http", "GET", {{"host", "x request_id=1"}, {"peer", "a\nb"}});
  EXPECT_NE(text.find("host=\"x request_id=1\" peer=\"a\\x0ab\"\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace isola::log
