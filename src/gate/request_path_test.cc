#include "gate/request_path.h"

#include <gtest/gtest.h>

namespace isola::gate {
namespace {

TEST(RequestPath, OneSpelling) {
  EXPECT_EQ(normal_path("/").value(), "/");
  EXPECT_EQ(normal_path("/re%70os/%7Ex/a%2eb").value(), "/repos/~x/a.b");
  EXPECT_EQ(normal_path("/a%2cb%3a/%e2%82%ac").value(), "/a%2Cb%3A/%E2%82%AC");
  EXPECT_EQ(normal_path("/%f0%9f%8c%8a%c3%a4").value(), "/%F0%9F%8C%8A%C3%A4");
  EXPECT_EQ(normal_path("/a/").value(), "/a/");
  EXPECT_EQ(normal_path("/...").value(), "/...");
  EXPECT_EQ(normal_path("/a;b=c").value(), "/a;b=c");
}

TEST(RequestPath, WhatIsNotClearIsRefused) {
  for (const char* path : {"",
                           "a",
                           "*",
                           "//",
                           "//a",
                           "/a//b",
                           "/.",
                           "/..",
                           "/a/../b",
                           "/a/./b",
                           "/%2e",
                           "/%2E%2e/",
                           "/.%2e",
                           "/..;x",
                           "/..;/a",
                           "/.;/a",
                           "/a%2fb",
                           "/a%5cb",
                           "/a\\b",
                           "/a%00",
                           "/a%0d%0a",
                           "/a%7f",
                           "/a b",
                           "/a?b",
                           "/a#b",
                           "/a%",
                           "/a%2",
                           "/a%zz",
                           "/%c0%af",
                           "/%C1%9c",
                           "/\x80",
                           "/a\tb",
                           "/%e0%80%ae",
                           "/%e0%80%af",
                           "/%f0%80%80%ae",
                           "/%ed%a0%80",
                           "/%f4%90%80%80",
                           "/%f5%80%80%80",
                           "/%80",
                           "/%e2%82",
                           "/%e2%82/x"})
    EXPECT_FALSE(normal_path(path)) << path;
}

TEST(RequestPath, APrefixEndsWhereASegmentEnds) {
  EXPECT_TRUE(is_under("/user", "/user"));
  EXPECT_TRUE(is_under("/user/keys", "/user"));
  EXPECT_FALSE(is_under("/users", "/user"));
  EXPECT_TRUE(is_under("/repos/a", "/repos/"));
  EXPECT_FALSE(is_under("/repos", "/repos/"));
  EXPECT_TRUE(is_under("/a", "/"));
  EXPECT_TRUE(is_under("/a", ""));
}

TEST(RequestPath, ParametersGoWhateverTheirSpelling) {
  bool found = false;
  EXPECT_EQ(without_parameter("a=1&key=x&b=2;k%65y=y&key&c", "key", &found), "a=1&b=2&c");
  EXPECT_TRUE(found);
  EXPECT_EQ(without_parameter("key=1", "key"), "");
  EXPECT_EQ(without_parameter("akey=1&b=x;y", "key"), "akey=1&b=x;y");
  EXPECT_EQ(without_parameter("", "key"), "");
}

TEST(RequestPath, Escapes) {
  EXPECT_EQ(percent_encoded("a b/€~"), "a%20b%2F%E2%82%AC~");
  EXPECT_EQ(percent_encoded("a/b", true), "a/b");
  EXPECT_EQ(percent_decoded("%61%2Gb%2f%"), "a%2Gb/%");
  EXPECT_TRUE(is_method("GET") && is_method("M-SEARCH"));
  EXPECT_FALSE(is_method("get") || is_method("") || is_method("G T"));
}

}  // namespace
}  // namespace isola::gate
