#include "image/recipes.h"

#include <gtest/gtest.h>

#include "image/node_runtime.h"
#include "image/project_quota.h"

namespace isola::image {
namespace {

TEST(Recipes, TextCoversWhatDecidesTheContents) {
  Recipe r = find_recipe("base").value();
  std::string text = to_text(r);
  Recipe more = r;
  more.packages.push_back("zsh");
  EXPECT_NE(to_text(more), text);
  more = r;
  more.node = !r.node;
  EXPECT_NE(to_text(more), text);
  more = r;
  more.manuals = !r.manuals;
  EXPECT_NE(to_text(more), text);
  more = r;
  std::swap(more.packages.front(), more.packages.back());
  more.summary = "other words";
  EXPECT_EQ(to_text(more), text);
}

TEST(Node, NewestWithLongTermSupport) {
  const char* listing = "x (25.1.0)\nAvailable versions: 26.1.0, 25.1.0, 24.9.0, 24.11.1, 22.20.0\nINSTALLED: 1\n";
  EXPECT_EQ(newest_lts(listing, 2026, 5), "24.11.1");
  EXPECT_EQ(newest_lts(listing, 2026, 11), "26.1.0");
  EXPECT_EQ(newest_lts(listing, 2025, 6), "22.20.0");
  EXPECT_EQ(newest_lts("Available versions: 20.13.0.post1, 20.12.2", 2027, 1), "20.12.2");
  EXPECT_EQ(newest_lts("Available versions: 25.0.0", 2027, 1), "");
  EXPECT_EQ(newest_lts("Available versions: , x, 1, 2., 4.5", 2027, 1), "");
  EXPECT_EQ(newest_lts("no such package", 2027, 1), "");
}

TEST(ProjectQuota, AFolderWithoutOurProjectIsSaidSo) {
  auto project = project_of("/tmp");
  ASSERT_FALSE(project);
  EXPECT_FALSE(project_of("/no/such/folder"));
}

}  // namespace
}  // namespace isola::image
