#include "image/profile.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace isola::image {

TEST(Profile, AsksNoLonger) {
  EXPECT_EQ(without_asking("if [ \"$(id -u)\" -eq 0 ]; then\nx\nfi\n[ \"$(id -u)\" -eq 0 ]\n"),
            "if [ \"${EUID:-$(id -u)}\" -eq 0 ]; then\nx\nfi\n[ \"${EUID:-$(id -u)}\" -eq 0 ]\n");
  EXPECT_EQ(without_asking("id -u\n"), "id -u\n");
}

TEST(Profile, ShellsAnswerTheSame) {
  std::string line = without_asking("test \"$(id -u)\" -eq ");
  for (const char* shell : {"bash", "sh"}) {
    std::string command = std::string(shell) + " -c '" + line + "\"$(id -u)\"'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace isola::image
