#include "sandbox/quiet_run.h"

#include <gtest/gtest.h>

namespace isola::sandbox {
namespace {

// What a program said stands behind the first line, for whoever asked; records keep the line.
TEST(OwnWords, AreWhatStandsBeforeWhatAProgramSaid) {
  QuietEnd end{.exit = {}, .output = "a token: hunter2\nand more\n"};
  const std::string all = "on_create: the command \"x\" ended with 1" + and_said(end);
  EXPECT_NE(all.find("hunter2"), std::string::npos) << "whoever asked hears it";
  EXPECT_EQ(own_words(all), "on_create: the command \"x\" ended with 1");
  EXPECT_EQ(own_words("probe: the sandbox was not ready within a minute" + and_said(end)),
            "probe: the sandbox was not ready within a minute");
  EXPECT_EQ(own_words("it said nothing" + and_said(QuietEnd{})), "it said nothing");
  EXPECT_EQ(own_words("in the middle" + and_said(end) + " (again)"), "in the middle");
  EXPECT_EQ(own_words("a name like \", and said\" on one line"), "a name like \", and said\" on one line");
  EXPECT_EQ(own_words(""), "");
  EXPECT_TRUE(repeats_inside(all));
  EXPECT_FALSE(repeats_inside("it said nothing" + and_said(QuietEnd{})));
}

}  // namespace
}  // namespace isola::sandbox
