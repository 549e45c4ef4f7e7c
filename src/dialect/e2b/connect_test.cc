#include "dialect/e2b/connect.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace isola::e2b {
namespace {

TEST(Connect, AnEnvelopeIsFlagsLengthAndText) { EXPECT_EQ(envelope(2, "{}"), std::string("\x02\0\0\0\x02{}", 7)); }

TEST(Connect, EnvelopesComeOutWholeHoweverTheyArrive) {
  std::string bytes = envelope(0, "{\"a\":1}") + envelope(0, "") + envelope(0, std::string(70000, 'x'));
  EnvelopeReader reader(1 << 20);
  std::vector<std::string> got;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    ASSERT_TRUE(reader.feed(std::string_view(bytes).substr(at, 3)));
    while (auto message = reader.next()) got.push_back(*message);
  }
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0], "{\"a\":1}");
  EXPECT_EQ(got[1], "");
  EXPECT_EQ(got[2].size(), 70000u);
  EXPECT_TRUE(reader.empty());
}

TEST(Connect, RefusesWhatIsCompressedOrTooLarge) {
  EnvelopeReader packed(100), large(100), larger(100);
  EXPECT_FALSE(packed.feed(envelope(1, "x")));
  EXPECT_FALSE(large.feed(std::string("\0\xff\xff\xff\xff", 5)));
  EXPECT_FALSE(larger.feed(envelope(0, std::string(101, 'x'))));
}

TEST(Connect, ABodyIsAnObjectOfBoundedDepth) {
  EXPECT_TRUE(parse_object(""));
  EXPECT_TRUE(parse_object("{\"a\":{\"b\":[1]}}"));
  EXPECT_FALSE(parse_object("[1]"));
  EXPECT_FALSE(parse_object("{"));
  EXPECT_FALSE(parse_object("{\"a\":" + std::string(100000, '[')));
  EXPECT_FALSE(parse_object("{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}"));
}

TEST(Connect, ErrorsHaveConnectsWordsAndStatus) {
  EXPECT_EQ(rpc_error(Error{Code::not_found, "x"}).code, "not_found");
  EXPECT_EQ(status_of_rpc("not_found"), 404);
  EXPECT_EQ(rpc_error(Error{Code::invalid, "x"}).code, "invalid_argument");
  EXPECT_EQ(status_of_rpc("unauthenticated"), 401);
  EXPECT_EQ(status_of_rpc("anything else"), 500);
}

}  // namespace
}  // namespace isola::e2b
