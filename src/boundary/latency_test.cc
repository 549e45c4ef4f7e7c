#include "boundary/latency.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace isola {
namespace {

using std::chrono::nanoseconds;

TEST(Latency, AddsUp) {
  Latency latency;
  EXPECT_EQ(latency.total(), nanoseconds(0));
  latency.add(Step::layer, nanoseconds(5));
  latency.add(Step::layer, nanoseconds(6));
  latency.add(Step::exec, nanoseconds(100));
  EXPECT_EQ(latency.of(Step::layer), nanoseconds(11));
  EXPECT_EQ(latency.of(Step::claim), nanoseconds(0));
  EXPECT_EQ(latency.total(), nanoseconds(111));
}

// The names go into results and the API: each its own, and in the order of the steps.
TEST(Latency, EveryStepHasItsName) {
  std::set<std::string_view> names;
  for (int i = 0; i < static_cast<int>(Step::count_); ++i) {
    auto name = to_string(static_cast<Step>(i));
    EXPECT_FALSE(name.empty());
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(to_string(Step::layer), "layer");
  EXPECT_EQ(to_string(Step::network), "network");
  EXPECT_EQ(to_string(Step::verify), "verify");
  EXPECT_EQ(to_string(Step::claim), "claim");
}

TEST(Latency, AStopwatchLeavesNoTimeOut) {
  Latency latency;
  auto before = std::chrono::steady_clock::now();
  Stopwatch watch(latency);
  watch.lap(Step::clone);
  watch.lap(Step::root);
  watch.lap(Step::clone);
  auto whole = std::chrono::steady_clock::now() - before;
  EXPECT_LE(latency.total(), whole);
  EXPECT_GE(latency.of(Step::clone), nanoseconds(0));
  EXPECT_EQ(latency.of(Step::clone) + latency.of(Step::root), latency.total());
}

}  // namespace
}  // namespace isola
