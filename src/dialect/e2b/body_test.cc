#include "dialect/e2b/body.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

using nlohmann::json;

TEST(Body, SecondsHaveBounds) {
  EXPECT_EQ(seconds(json{{"timeout", 1.5}}, "timeout", 7).value(), 1500);
  EXPECT_EQ(seconds(json{{"timeout", nullptr}}, "timeout", 7).value(), 7000);
  EXPECT_EQ(seconds(json{{"timeout", 0}}, "timeout", 7).value(), 1) << "nobody says never";
  for (const json& wrong : {json(-1), json(1e18), json("1"), json(true)})
    EXPECT_EQ(seconds(json{{"timeout", wrong}}, "timeout", 7).error().code, Code::invalid) << wrong;
}

}  // namespace
}  // namespace isola::e2b
