#include "cli/counted_progress.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

struct Told {
  std::string text;
  CountedProgress::Clock::time_point now{};
  CountedProgress progress(bool terminal) {
    return {3, terminal, [this](const std::string& more) { text += more; }, [this] { return now; }};
  }
};

TEST(CountedProgress, OneLineOnATerminal) {
  Told told;
  {
    auto progress = told.progress(true);
    progress.begin("one");
    progress.wipe();
    progress.wipe();
    progress.begin("two");
  }
  EXPECT_EQ(told.text, "\r\033[K1/3 one\r\033[K\r\033[K2/3 two\r\033[K");
}

TEST(CountedProgress, ALineNowAndThenElsewhere) {
  Told told;
  auto progress = told.progress(false);
  progress.begin("one");
  told.now += std::chrono::seconds(11);
  progress.begin("two");
  progress.wipe();
  progress.begin("three");
  EXPECT_EQ(told.text, "2/3 two\n");
}

}  // namespace
}  // namespace isola::cli
