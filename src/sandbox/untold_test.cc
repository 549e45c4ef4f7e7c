#include "sandbox/untold.h"

#include <gtest/gtest.h>

namespace isola::sandbox {
namespace {

TEST(Untold, EachIsToldOfOnce) {
  Untold all;
  EXPECT_FALSE(all.take("i1"));
  all.add({.id = "i1", .ceiling = "deny *\n", .first = true});
  all.add({.id = "i2", .first = true});
  auto request = all.take("i1");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->id, "i1");
  EXPECT_EQ(request->ceiling, "deny *\n");
  EXPECT_TRUE(request->first);
  EXPECT_FALSE(all.has("i1"));
  EXPECT_FALSE(all.take("i1"));
  EXPECT_TRUE(all.has("i2"));
  EXPECT_TRUE(all.take("i2"));
}

}  // namespace
}  // namespace isola::sandbox
