#include "cli/progress_bar.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

using namespace std::chrono_literals;

TEST(ProgressText, WithATotal) {
  EXPECT_EQ(progress_text("f", 5 << 20, 10 << 20, 5s),
            "f  [============>           ]  50%  5.0 MiB of 10.0 MiB  1.0 MiB/s  5s");
  EXPECT_EQ(progress_text("f", 10, 10, 1s).substr(0, 34), "f  [========================]  100");
}

TEST(ProgressText, SurvivesWhatCannotBe) {
  EXPECT_NE(progress_text("f", 20, 10, 0ms).find("100%"), std::string::npos);
  EXPECT_NE(progress_text("f", 0, 0, 0ms).find("100%"), std::string::npos);
  EXPECT_EQ(progress_text("f", 2048, std::nullopt, 2s), "f  2.0 KiB  1.0 KiB/s");
}

}  // namespace
}  // namespace isola::cli
