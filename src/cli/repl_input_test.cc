#include "cli/repl_input.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

TEST(ReplInput, KnowsWhenACellGoesOn) {
  EXPECT_FALSE(wants_more("1 + 1\n"));
  EXPECT_FALSE(wants_more("\n"));
  EXPECT_TRUE(wants_more("def f(x):\n"));
  EXPECT_TRUE(wants_more("def f(x):\n  return x\n"));
  EXPECT_FALSE(wants_more("def f(x):\n  return x\n\n"));
  EXPECT_TRUE(wants_more("f(1,\n"));
  EXPECT_FALSE(wants_more("f(1,\n2)\n"));
  EXPECT_FALSE(wants_more("print('(')\n"));
  EXPECT_FALSE(wants_more("print('it\\'s (')\n"));
  EXPECT_TRUE(wants_more("echo a \\\n"));
  EXPECT_FALSE(wants_more("f(\n\n")) << "who presses Enter twice wants to see the error";
}

}  // namespace
}  // namespace isola::cli
