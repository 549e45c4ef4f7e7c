#include "dialect/native/port_access.h"

#include <gtest/gtest.h>

namespace isola::native {
namespace {

TEST(PortAccess, OurQueryParametersStayOutside) {
  EXPECT_EQ(without_grant("/a"), "/a");
  EXPECT_EQ(without_grant("/a?x=1&y=2"), "/a?x=1&y=2");
  EXPECT_EQ(without_grant("/a?isola_token=t"), "/a");
  EXPECT_EQ(without_grant("/a?x=1&isola_signature=s&isola_expires=1&isola_path=%2F&y=2"), "/a?x=1&y=2");
}

TEST(PortAccess, EveryPartOfAGrantIsSigned) {
  Grant grant{"i1", 80, "/a", 1000};
  auto mac = [](const std::string& secret, const Grant& g) {
    auto query = sign(secret, g);
    return query ? query->substr(query->find("isola_signature=")) : "failed";
  };
  std::string base = mac("secret", grant);
  EXPECT_EQ(base, mac("secret", grant));
  for (Grant other : {Grant{"i2", 80, "/a", 1000}, Grant{"i1", 81, "/a", 1000}, Grant{"i1", 80, "/b", 1000},
                      Grant{"i1", 80, "/a", 1001}, Grant{"i1", 80, "/a*", 1000}})
    EXPECT_NE(mac("secret", other), base);
  EXPECT_NE(mac("other", grant), base);
  EXPECT_FALSE(sign("", grant)) << "an empty secret signs nothing";
}

}  // namespace
}  // namespace isola::native
