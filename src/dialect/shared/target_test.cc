#include "dialect/shared/target.h"

#include <gtest/gtest.h>

namespace isola::dialect {

namespace {
constexpr const char* kId = "i0123456789abcdefghij";
}

TEST(Target, ANumberIsAPortOnlyWhenItIsOne) {
  EXPECT_EQ(port_number("1"), 1);
  EXPECT_EQ(port_number("65535"), 65535);
  for (const char* text : {"", "0", "65536", "99999", "100000", "+80", " 80", "80 ", "8o", "-1", "0x50"})
    EXPECT_FALSE(port_number(text)) << text;
}

TEST(Target, ANameSaysPortAndSandbox) {
  auto target = by_name(std::string("8000-") + kId + ".example.org", "example.org");
  ASSERT_TRUE(target);
  EXPECT_EQ(target->id, kId);
  EXPECT_EQ(target->port, 8000);
}

TEST(Target, OtherNamesSayNothing) {
  std::string id = kId;
  for (const std::string& host :
       {std::string(), std::string("example.org"), std::string(".example.org"), "8000-" + id, id + ".example.org",
        "8000-" + id + ".example.com", "8000-" + id + "example.org", "0-" + id + ".example.org",
        "8000-" + id + ".x.example.org", "8000-" + id + "-x.example.org", std::string("8000-.example.org")})
    EXPECT_FALSE(by_name(host, "example.org")) << host;
  EXPECT_FALSE(by_name("8000-" + id + ".example.org", ""));
}

TEST(Target, ADialectMayWriteMoreThanTheId) {
  IdOf first = [](std::string_view text) { return std::string(text.substr(0, text.find('-'))); };
  auto target = by_name(std::string("80-") + kId + "-client.example.org", "example.org", first);
  ASSERT_TRUE(target);
  EXPECT_EQ(target->id, kId);
}

}  // namespace isola::dialect
