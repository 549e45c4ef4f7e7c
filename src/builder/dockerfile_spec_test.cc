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

TEST(DockerfileSpec, WhatCannotBeCopiedIsSaid) {
  EXPECT_EQ(spec_for("FROM base AS a\nFROM base\nCOPY --from=a /x /y\n").error().code, Code::unsupported);
  EXPECT_EQ(spec_for("FROM base\nCOPY x /y\n", "").error().code, Code::invalid);
}

TEST(DockerfileSpec, ImagesThatAreHere) {
  EXPECT_EQ(template_for("e2bdev/base").value(), "base");
  EXPECT_EQ(template_for("docker.io/library/debian:bookworm-slim").value(), "base");
  EXPECT_EQ(template_for("e2bdev/code-interpreter:latest").value(), "code-interpreter");
  for (const char* image : {"ubuntu:22.04", "debian:trixie", "debian", "python:3.12", ""})
    EXPECT_EQ(template_for(image).error().code, Code::unsupported) << image;
}

}  // namespace
}  // namespace isola::builder
