// Processes of a real guest, driven through the client.
#include <gtest/gtest.h>

#include "guest/test_guest.h"

namespace isola::guest {
namespace {

TEST(GuestProcess, HelloAndRun) {
  TestGuest guest;
  auto hello = guest->hello();
  ASSERT_OK(hello);
  EXPECT_EQ(hello->id, TestGuest::kId);
  EXPECT_EQ(hello->generation, 1u);
  auto o = guest.sh("echo out; echo err >&2; exit 7");
  ASSERT_OK(o.exit);
  EXPECT_EQ(o.out, "out\n");
  EXPECT_EQ(o.err, "err\n");
  EXPECT_EQ(o.exit->code, 7);
  EXPECT_EQ(o.exit->seq, 8u);
  EXPECT_EQ(guest->ping("x").value(), "x");
}

}  // namespace
}  // namespace isola::guest
