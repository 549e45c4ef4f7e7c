#include "dialect/e2b/accounts.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

TEST(Accounts, ReadsNamesAndHomes) {
  auto a = Accounts::parse(
      "root:x:0:0:root:/root:/bin/bash\nbroken\nuser:x:1000:1000::/home/user:/bin/bash\nodd:x:7:7::x:\n",
      "root:x:0:\nstaff:x:50:user\nbad:x:y:\n");
  EXPECT_EQ(a.home("user"), "/home/user");
  EXPECT_EQ(a.home("odd"), "/");
  EXPECT_FALSE(a.home("nobody"));
  EXPECT_FALSE(a.home("broken"));
  EXPECT_EQ(a.user(0), "root");
  EXPECT_EQ(a.user(1234), "1234");
  EXPECT_EQ(a.group(50), "staff");
  EXPECT_EQ(a.group(51), "51");
}

TEST(Paths, BeginAtTheHome) {
  EXPECT_EQ(*expand("a/b.txt", "/home/user"), "/home/user/a/b.txt");
  EXPECT_EQ(*expand("", "/home/user"), "/home/user");
  EXPECT_EQ(*expand("~", "/root"), "/root");
  EXPECT_EQ(*expand("~/x", "/root"), "/root/x");
  EXPECT_EQ(*expand("../x", "/home/user"), "/home/x");
  EXPECT_EQ(*expand("/a/../b", "/root"), "/a/../b");
  EXPECT_FALSE(expand("~root/x", "/home/user"));
  EXPECT_FALSE(expand(std::string("a\0b", 3), "/home/user"));
}

TEST(Paths, HaveParts) {
  EXPECT_EQ(cleaned("/a//b/./../c/"), "/a/c");
  EXPECT_EQ(cleaned("/../.."), "/");
  EXPECT_EQ(cleaned("a/.."), ".");
  EXPECT_EQ(base_name("/a/b/"), "b");
  EXPECT_EQ(base_name("/"), "/");
  EXPECT_EQ(folder_of("/a/b"), "/a");
  EXPECT_EQ(folder_of("/a"), "/");
}

}  // namespace
}  // namespace isola::e2b
