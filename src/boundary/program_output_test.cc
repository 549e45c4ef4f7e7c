#include "boundary/program_output.h"

#include <gtest/gtest.h>

namespace isola::boundary {
namespace {

TEST(ProgramOutput, IsWhatItPrints) {
  auto text = output_of("/bin/echo", "both");
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "both\n");
}

TEST(ProgramOutput, OfOneThatIsNotThereIsNothing) {
  auto text = output_of("/no/such/program", "x");
  ASSERT_TRUE(text);
  EXPECT_EQ(*text, "");
}

}  // namespace
}  // namespace isola::boundary
