#include "cli/place.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

TEST(Place, ASandboxsOrOurs) {
  auto inside = parse_place("box:/etc/hosts");
  ASSERT_TRUE(inside);
  EXPECT_EQ(inside->sandbox, "box");
  EXPECT_EQ(inside->path, "/etc/hosts");
  EXPECT_FALSE(inside->here());
  EXPECT_EQ(parse_place("i1:a:b")->path, "a:b");
  for (const char* here : {"file", "./a:b", "/tmp/a:b", "../x:y", "dir/a:b"}) {
    auto place = parse_place(here);
    ASSERT_TRUE(place) << here;
    EXPECT_TRUE(place->here()) << here;
    EXPECT_EQ(place->path, here);
    EXPECT_FALSE(place->stream());
  }
  EXPECT_TRUE(parse_place("-")->stream());
  EXPECT_FALSE(parse_place("i1:-")->stream());
}

TEST(Place, WhatIsMissingIsNamed) {
  for (const char* bad : {"", ":path", "i1:"}) EXPECT_FALSE(parse_place(bad)) << bad;
}

TEST(Place, LastPart) {
  EXPECT_EQ(last_part("/a/b"), "b");
  EXPECT_EQ(last_part("a/b//"), "b");
  EXPECT_EQ(last_part("b"), "b");
  EXPECT_EQ(last_part("/"), "");
  EXPECT_EQ(last_part("dir/."), "");
  EXPECT_EQ(last_part(".."), "");
}

TEST(Place, IntoAFolderOrAsIt) {
  EXPECT_EQ(target_of("/x", false, "n"), "/x");
  EXPECT_EQ(target_of("/x", true, "n"), "/x/n");
  EXPECT_EQ(target_of("/x/", false, "n"), "/x/n");
  EXPECT_EQ(target_of("/x", true, ""), "/x");
}

}  // namespace
}  // namespace isola::cli
