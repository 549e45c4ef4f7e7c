#include "cli/template_build.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

TEST(Dockerignore, PatternsBeginAtTheFolder) {
  EXPECT_EQ(exclusions("# a comment\n\n node_modules/ \n./build\n/dist\n*.log\n.\n").value(),
            (std::vector<std::string>{"node_modules", "build", "dist", "*.log"}));
}

TEST(Dockerignore, ExceptionsAreRefusedByName) {
  auto refused = exclusions("*.md\n!README.md\n");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("!README.md"), std::string::npos);
}

}  // namespace
}  // namespace isola::cli
