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

TEST(TemplateBuild, ImagesOnDisk) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(images_on_disk("FROM oci:./a AS b\nCOPY --from=oci:/c /x /y\nFROM oci:./a\nRUN echo soci:x\n"),
            (Words{"oci:./a", "oci:/c"}));
  EXPECT_EQ(images_on_disk("FROM base\n"), Words{});
}

}  // namespace
}  // namespace isola::cli
