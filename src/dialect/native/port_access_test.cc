#include "dialect/native/port_access.h"

#include <gtest/gtest.h>

namespace isola::native {
namespace {

TEST(PortAccess, OurQueryParametersStayOutside) {
  EXPECT_EQ(without_grant("/a"), "/a");
  EXPECT_EQ(without_grant("/a?x=1&y=2"), "/a?x=1&y=2");
  EXPECT_EQ(without_grant("/a?isola_token=t"), "/a");
  EXPECT_EQ(without_grant("/a?x=1&isola_signature=s&isola_expires=1&isola_path=%2F&y=2"), "/a?x=1&y=2");
  // Under whatever spelling of their names they let somebody in.
  EXPECT_EQ(without_grant("/a?isola%5Ftoken=t&x=1"), "/a?x=1");
  EXPECT_EQ(without_grant("/a?%69sola%5ftoken=t"), "/a");
  EXPECT_EQ(without_grant("/a?x=1&isola%5Fsignature=s&isola%5fexpires=1&i%73ola_path=%2F"), "/a?x=1");
  EXPECT_EQ(without_grant("/a?isola_tokens=1&isola%255Ftoken=2&%zz=3&isola_token"),
            "/a?isola_tokens=1&isola%255Ftoken=2&%zz=3");
}

TEST(PortAccess, WhatAGrantCovers) {
  EXPECT_TRUE(covers("/sub/*", "/sub/page"));
  EXPECT_TRUE(covers("/sub/*", "/sub/a%20b;v=1/x..y/..z"));
  EXPECT_TRUE(covers("/sub/*", "/sub/100%25"));
  EXPECT_TRUE(covers("/a", "/a"));
  EXPECT_FALSE(covers("/a", "/a/"));
  EXPECT_FALSE(covers("/sub/*", "/other"));
  for (const char* path : {"/sub/../x", "/sub/..", "/sub/%2e%2e/x", "/sub/%252e%252e/x", "/sub/..;/x", "/sub/..;a=b/x",
                           "/sub/./x", "/sub/%2e;/x", "/sub/..%2fx", "/sub/..%5cx", "/sub/a%00", "/sub/%",
                           "/sub/%25252e%25252e/x", "/sub/%252e%252e/100%25", "/sub/a%2500/%25", "/sub/%255c%25"})
    EXPECT_FALSE(covers("/sub/*", path)) << path;
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
