#include "builder/dockerfile_spec.h"

#include <gtest/gtest.h>

namespace isola::builder {
namespace {

Result<Spec> spec_for(const std::string& text, const std::string& context = std::string(64, 'a')) {
  auto file = parse_dockerfile(text, {});
  if (!file) return std::unexpected(file.error());
  return to_spec(*file, context);
}

TEST(DockerfileSpec, AStageOnTopOfAnotherHasItsSteps) {
  auto spec = spec_for("FROM base AS one\nRUN a\nCMD serve\nFROM other AS two\nRUN x\nFROM one\nCOPY f /f\nRUN b\n");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->from, "base");
  ASSERT_EQ(spec->steps.size(), 3u);
  EXPECT_EQ(spec->steps[0].command, "a");
  EXPECT_EQ(spec->steps[1].context, std::string(64, 'a'));
  EXPECT_EQ(spec->steps[2].command, "b");
  EXPECT_EQ(spec->start, "serve");
  EXPECT_EQ(spec->user, "root");
}

TEST(DockerfileSpec, StagesThatAreCopiedFromBecomeParts) {
  auto spec = spec_for(
      "FROM base AS tools\nRUN t\n"
      "FROM tools AS one\nRUN a\n"
      "FROM other AS unused\nRUN x\n"
      "FROM third AS two\nCOPY --from=one /a /b\n"
      "FROM fourth\nCOPY --from=two /b /c\nCOPY --from=one /a /a\nCOPY --from=nginx:1 /etc /etc\n");
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->from, "fourth");
  ASSERT_EQ(spec->parts.size(), 3u) << "what nothing needs is left out";
  EXPECT_EQ(spec->parts[0].from, "base");
  ASSERT_EQ(spec->parts[0].steps.size(), 2u) << "with the steps of what it stands on";
  EXPECT_EQ(spec->parts[0].steps[0].command, "t");
  EXPECT_EQ(spec->parts[1].from, "third");
  EXPECT_EQ(spec->parts[1].steps[0].stage, "0");
  EXPECT_EQ(spec->parts[2].from, "nginx:1");
  EXPECT_TRUE(spec->parts[2].steps.empty());
  ASSERT_EQ(spec->steps.size(), 3u);
  EXPECT_EQ(spec->steps[0].stage, "1");
  EXPECT_EQ(spec->steps[1].stage, "0") << "each once";
  EXPECT_EQ(spec->steps[2].stage, "2");
  EXPECT_EQ(bases_of(*spec), (std::vector<std::string>{"fourth", "base", "third", "nginx:1"}));
}

TEST(DockerfileSpec, WhatRunsIsTheUppermost) {
  EXPECT_EQ(spec_for("FROM b AS a\nCMD x\nFROM a AS c\nFROM c\n")->start, "x");
  EXPECT_EQ(spec_for("FROM b AS a\nCMD x\nFROM a\nCMD y\n")->start, "y");
}

TEST(DockerfileSpec, WhatCannotBeCopiedIsSaid) {
  auto missing = spec_for("FROM base\nRUN a\nCOPY x /y\n", "");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, Code::invalid);
  EXPECT_TRUE(missing.error().message.starts_with("Dockerfile line 3: ")) << missing.error().message;
}

// A few lines that would become millions of steps.
TEST(DockerfileSpec, HowMuchItBecomesIsBounded) {
  std::string many = "FROM base AS s0\n";
  for (int i = 0; i < 200; ++i) many += "RUN a\n";
  for (int i = 1; i < 60; ++i)
    many += "FROM s" + std::to_string(i - 1) + " AS s" + std::to_string(i) + "\nCOPY --from=s" + std::to_string(i - 1) +
            " /a /b\n";
  EXPECT_EQ(spec_for(many).error().code, Code::invalid);
  std::string stages;
  for (int i = 0; i < 101; ++i) stages += "FROM base\n";
  EXPECT_EQ(spec_for(stages).error().code, Code::invalid);
}

TEST(DockerfileSpec, ImagesThatAreHere) {
  EXPECT_EQ(template_for("e2bdev/base"), "base");
  EXPECT_EQ(template_for("docker.io/library/debian:bookworm-slim"), "base");
  EXPECT_EQ(template_for("e2bdev/code-interpreter:latest"), "code-interpreter");
  for (const char* image : {"ubuntu:22.04", "debian:trixie", "debian", "python:3.12", ""})
    EXPECT_FALSE(template_for(image)) << image;
}

}  // namespace
}  // namespace isola::builder
