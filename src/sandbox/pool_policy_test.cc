#include "sandbox/pool_policy.h"

#include <gtest/gtest.h>

namespace isola::sandbox {
namespace {

TEST(PoolPolicy, KeepsTheLeastUntilSomebodyWantsMore) {
  PoolPolicy policy;
  EXPECT_EQ(policy.target(1'000'000, {.least = 2, .most = 16}), 2u);
  policy.wanted(1'000'000);
  EXPECT_EQ(policy.target(1'000'000, {.least = 2, .most = 16}), 2u);
}

TEST(PoolPolicy, FollowsTheBusiestSecondOfTheLastMinute) {
  PoolPolicy policy;
  for (int i = 0; i < 7; ++i) policy.wanted(1'000'100 + i);
  for (int i = 0; i < 3; ++i) policy.wanted(1'010'000);
  EXPECT_EQ(policy.target(1'010'000, {.least = 1, .most = 16}), 7u);
  EXPECT_EQ(policy.target(1'059'000, {.least = 1, .most = 16}), 7u);
  EXPECT_EQ(policy.target(1'061'000, {.least = 1, .most = 16}), 3u);  // the burst is a minute old
  EXPECT_EQ(policy.target(1'100'000, {.least = 1, .most = 16}), 1u);
}

TEST(PoolPolicy, ASecondOfAMinuteAgoIsNotAddedToThisOne) {
  PoolPolicy policy;
  for (int i = 0; i < 5; ++i) policy.wanted(1'000'000);
  policy.wanted(1'060'000);  // the same slot
  EXPECT_EQ(policy.target(1'060'000, {.least = 1, .most = 16}), 1u);
}

TEST(PoolPolicy, StaysWithinItsBounds) {
  PoolPolicy policy;
  for (int i = 0; i < 100; ++i) policy.wanted(1'000'000);
  EXPECT_EQ(policy.target(1'000'000, {.least = 1, .most = 16}), 16u);
  EXPECT_EQ(policy.target(1'000'000, {.least = 20, .most = 16}), 20u);
  EXPECT_EQ(policy.target(1'000'000, {.least = 1, .most = 16, .ahead = 4}), 16u);
  EXPECT_EQ(policy.target(1'000'000, {.least = 0, .most = 16}), 0u);
  // A quarter of what is free, at 8 MiB each.
  EXPECT_EQ(policy.target(1'000'000, {.least = 1, .most = 16, .free_memory = 128 << 20}), 4u);
  EXPECT_EQ(policy.target(1'000'000, {.least = 1, .most = 16, .free_memory = 0}), 1u);
}

TEST(PoolPolicy, AllPoolsTogetherHaveABound) {
  PoolPolicy policy;
  for (int i = 0; i < 100; ++i) policy.wanted(1'000'000);
  PoolBounds bounds{.least = 1, .most = 16, .free_memory = uint64_t{64} << 30, .left = 40 << 20};
  EXPECT_EQ(policy.target(1'000'000, bounds), 5u);
  bounds.each = 8 << 20;
  EXPECT_EQ(policy.target(1'000'000, bounds), 2u);
  bounds.left = 0;
  EXPECT_EQ(policy.target(1'000'000, bounds), 1u) << "the least is the operator's word";
  bounds.only_while = true;
  EXPECT_EQ(policy.target(1'000'000, bounds), 0u);
  EXPECT_EQ(pool_bytes(3, 8 << 20), 3u * (16 << 20));
}

TEST(PoolPolicy, TheMachineHasSomeMemory) {
  EXPECT_GT(available_memory(), 1u << 20);
  EXPECT_NE(available_memory(), UINT64_MAX);
}

TEST(PoolPolicy, OfAProjectsOwnOnesNoneIsKeptForNobody) {
  PoolPolicy policy;
  PoolBounds bounds{.least = 2, .most = 16, .only_while = true};
  EXPECT_EQ(policy.target(1000, bounds), 0u);
  policy.wanted(1000);
  EXPECT_EQ(policy.target(1000, bounds), 1u);
  EXPECT_EQ(policy.target(1000 + 120'000, bounds), 0u);
  bounds.free_memory = 100 << 20;
  bounds.each = 1 << 30;
  EXPECT_EQ(policy.target(1000, bounds), 0u) << "where there is no room there is none";
}

}  // namespace
}  // namespace isola::sandbox
