#include "dialect/e2b/throttle.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

using namespace std::chrono_literals;

TEST(Throttle, OnlySoMuchInASecond) {
  Throttle throttle(1000);
  auto now = Throttle::Clock::time_point() + 1h;
  int done = 0;
  while (throttle.take(100, now)) ++done;
  EXPECT_EQ(done, 10);
  EXPECT_FALSE(throttle.take(1, now));
  EXPECT_TRUE(throttle.take(50, now + 50ms));
  EXPECT_FALSE(throttle.take(50, now + 50ms));
  // A quiet day saves nothing up.
  done = 0;
  while (throttle.take(100, now + 24h)) ++done;
  EXPECT_EQ(done, 10);
}

TEST(Throttle, OneThatIsLargerThanASecondIsDoneAndPaidFor) {
  Throttle throttle(1000);
  auto now = Throttle::Clock::time_point() + 1h;
  EXPECT_TRUE(throttle.take(5000, now));
  EXPECT_FALSE(throttle.take(1, now + 3900ms));
  EXPECT_TRUE(throttle.take(1, now + 4100ms));
}

}  // namespace
}  // namespace isola::e2b
