#include "dialect/e2b/metrics.h"

#include <gtest/gtest.h>

namespace isola::e2b {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Measured at(store::Millis when) {
  Measured one;
  one.at = when;
  return one;
}

std::vector<store::Millis> times(const History& history) {
  std::vector<store::Millis> out;
  for (const auto& one : history.all()) out.push_back(one.at);
  return out;
}

TEST(History, TheCpuIsThatOfTheTimeBetweenTwoLooks) {
  History history;
  const History::Clock::time_point begin{};
  EXPECT_FALSE(history.cpu_share(9'000'000, begin)) << "what was before it was looked at is nobody's";
  EXPECT_DOUBLE_EQ(history.cpu_share(10'000'000, begin + seconds(2)).value(), 0.5);
  EXPECT_DOUBLE_EQ(history.cpu_share(10'000'000, begin + seconds(3)).value(), 0);
  EXPECT_DOUBLE_EQ(history.cpu_share(500'000, begin + seconds(4)).value(), 0.5) << "resumed: it counts anew";
  EXPECT_FALSE(history.cpu_share(600'000, begin + seconds(4)));
  EXPECT_FALSE(history.cpu_share(700'000, begin + milliseconds(4099))) << "too soon, and as if nobody had looked";
  EXPECT_DOUBLE_EQ(history.cpu_share(1'000'000, begin + seconds(5)).value(), 0.5);
}

TEST(History, StepsAreKeptAndTheNewest) {
  History history;
  const History::Clock::time_point begin{};
  EXPECT_TRUE(times(history).empty());
  history.add(at(0), begin + seconds(1));
  history.add(at(2000), begin + seconds(3));
  EXPECT_EQ(times(history), (std::vector<store::Millis>{0, 2000}));
  history.add(at(4500), begin + milliseconds(5500));  // a little early
  EXPECT_EQ(times(history), (std::vector<store::Millis>{0, 4500}));
  history.add(at(6000), begin + seconds(7));
  EXPECT_EQ(times(history), (std::vector<store::Millis>{0, 4500, 6000}));
  EXPECT_TRUE(history.is_fresh(begin + milliseconds(7900)));
  EXPECT_FALSE(history.is_fresh(begin + seconds(8)));
}

TEST(History, ItIsBounded) {
  History history;
  const History::Clock::time_point begin{};
  for (size_t i = 0; i < History::kKept + 10; ++i)
    history.add(at(static_cast<store::Millis>(i)), begin + History::kEvery * static_cast<int>(i + 1));
  auto all = times(history);
  EXPECT_EQ(all.size(), History::kKept);
  EXPECT_EQ(all.front(), 10);
}

}  // namespace
}  // namespace isola::e2b
