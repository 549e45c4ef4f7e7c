#include "gate/share.h"

#include <gtest/gtest.h>

#include <list>

namespace isola::gate {
namespace {

TEST(Share, HasAMostOfItsOwn) {
  Pool pool{.size = 100};
  Share one(pool, {.little = 2, .most = 10});
  EXPECT_TRUE(one.take(10));
  EXPECT_FALSE(one.take());
  one.give_back(3);
  EXPECT_TRUE(one.take(3));
  EXPECT_FALSE(one.take(SIZE_MAX)) << "sums do not run over";
  EXPECT_EQ(pool.used, 10U);
}

TEST(Share, LeavesTheReserveToThoseWhoHaveLittle) {
  Pool pool{.size = 100, .reserve = 20};
  std::list<Share> greedy;
  for (int i = 0; i < 10; ++i) {
    auto& one = greedy.emplace_back(pool, Share::Quota{.little = 2, .most = 50});
    while (one.take()) {
    }
  }
  // Eighty for whoever comes first; then each of the others has its two.
  EXPECT_EQ(pool.used, 80U + 8 * 2);
  Share late(pool, {.little = 2, .most = 50});
  EXPECT_TRUE(late.take(2));
  EXPECT_FALSE(late.take());
}

TEST(Share, GoesBackWhenItsOwnerGoes) {
  Pool pool{.size = 10};
  {
    Share one(pool, {.little = 1, .most = 10});
    EXPECT_TRUE(one.take(7));
    EXPECT_EQ(pool.used, 7U);
  }
  EXPECT_EQ(pool.used, 0U);
}

TEST(Share, LargeNumbersDoNotRunOver) {
  Pool endless;
  Share one(endless, {.little = 1, .most = 10});
  EXPECT_FALSE(one.take(SIZE_MAX)) << "more than its most";
  Pool small{.size = 5};
  Share two(small, {.little = 1});
  EXPECT_FALSE(two.take(10)) << "more than there is";
  EXPECT_EQ(small.used, 0U);
}

}  // namespace
}  // namespace isola::gate
