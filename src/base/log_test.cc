#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/fd.h"
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

// Other programs may write to the same pipe.
TEST(Log, LinesTogetherAreNeverTornApart) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_DIRECT), 0);
  Fd from(ends[0]), to(ends[1]), kept(::dup(STDERR_FILENO));
  ::dup2(to.get(), STDERR_FILENO);
  {
    Lines lines;
    for (int i = 0; i < 100; ++i) lines.add(i, Level::info, "http", std::string(90, 'x'));
    lines.add(0, Level::debug, "http", "not asked for");
  }
  ::dup2(kept.get(), STDERR_FILENO);
  to.reset();
  std::string all;
  char piece[65536];
  // Each read is what one write wrote.
  for (ssize_t n; (n = ::read(from.get(), piece, sizeof piece)) > 0;) {
    EXPECT_EQ(piece[n - 1], '\n');
    all.append(piece, n);
  }
  EXPECT_EQ(std::ranges::count(all, '\n'), 100);
  EXPECT_EQ(all.find("debug"), std::string::npos);
  EXPECT_NE(all.find("00:00:00.099Z"), std::string::npos);
}

}  // namespace
}  // namespace isola::log
