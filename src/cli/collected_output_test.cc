#include "cli/collected_output.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace isola::cli {
namespace {

constexpr size_t kMost = CollectedOutput::kMost;

TEST(CollectedOutput, SaysNothingOfWhatIsNotMissing) {
  CollectedOutput output;
  output.add(CollectedOutput::out, "a");
  output.add(CollectedOutput::out, "b");
  output.add(CollectedOutput::err, "c");
  EXPECT_EQ(output.result(), nlohmann::json({{"stdout", "ab"}, {"stderr", "c"}, {"untrusted", {"stdout", "stderr"}}}));
}

TEST(CollectedOutput, KeepsTheBeginningOfEachStreamAndCountsTheRest) {
  CollectedOutput output;
  output.add(CollectedOutput::out, std::string(kMost - 1, 'a'));
  output.add(CollectedOutput::out, "bcd");
  output.add(CollectedOutput::out, "efgh");
  output.add(CollectedOutput::err, std::string(kMost, 'e'));
  auto result = output.result();
  EXPECT_TRUE(result["stdout"] == std::string(kMost - 1, 'a') + "b");
  EXPECT_EQ(result["stdout_dropped_bytes"], 6);
  EXPECT_TRUE(result["stderr"] == std::string(kMost, 'e'));
  EXPECT_FALSE(result.contains("stderr_dropped_bytes"));
}

TEST(CollectedOutput, CountsWhatNeverCame) {
  CollectedOutput output;
  output.add_lost(3);
  output.add_lost(4);
  EXPECT_EQ(output.result()["lost_bytes"], 7);
}

}  // namespace
}  // namespace isola::cli
