#include "builder/devcontainer.h"

#include <gtest/gtest.h>

#include "builder/dockerfile_spec.h"

namespace isola::builder {
namespace {

Devcontainer parsed_container(const std::string& text, const DevcontainerPlace& place = {.workspace = "app"}) {
  auto dev = parse_devcontainer(text, place);
  EXPECT_TRUE(dev) << dev.error().message;
  return dev ? *dev : Devcontainer();
}
Error container_error(const std::string& text) {
  auto dev = parse_devcontainer(text, {});
  EXPECT_FALSE(dev) << text;
  return dev ? Error() : dev.error();
}

TEST(Devcontainer, AWholeOne) {
  auto dev = parsed_container(R"({
    // what it is
    "name": "App", /* shown by editors */
    "image": "python:3.12",
    "features": {"./tools": {"version": "1.2", "extra-docs": true,}},
    "containerEnv": {"WHERE": "${containerWorkspaceFolder}/x", "URL": "http://a//b"},
    "remoteEnv": {"BOTH": "${containerEnv:WHERE}:y"},
    "remoteUser": "user",
    "onCreateCommand": ["touch", "it's"],
    "postCreateCommand": {"a": "pip install .", "b": "make"},
  })");
  EXPECT_EQ(dev.image, "python:3.12");
  EXPECT_EQ(dev.ignored, std::vector<std::string>{"name has no meaning here"});
  std::vector<std::string> lines;
  for (const auto& step : dev.after) lines.push_back(step.line);
  EXPECT_EQ(lines, (std::vector<std::string>{"containerEnv URL=http://a//b WHERE=/workspaces/app/x", "feature ./tools",
                                             "feature ./tools: install.sh", "COPY . /workspaces/app",
                                             "WORKDIR /workspaces/app", "USER user",
                                             "remoteEnv BOTH=/workspaces/app/x:y", "onCreateCommand touch 'it'\\''s'",
                                             "postCreateCommand pip install .", "postCreateCommand make"}));
  EXPECT_EQ(dev.after[1].sources, std::vector<std::string>{".devcontainer/tools"});
  EXPECT_EQ(dev.after[2].run_as, "root");
  EXPECT_NE(dev.after[2].command.find(" EXTRA_DOCS='true' VERSION='1.2' && "), std::string::npos)
      << dev.after[2].command;
  EXPECT_EQ(dev.after[3].owner, "user");
  auto written = to_written(dev, "", std::string(64, 'a'));
  ASSERT_TRUE(written);
  auto spec = read_written(*written, {});
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->from, "python:3.12");
  EXPECT_EQ(spec->steps.size(), dev.after.size());
  EXPECT_EQ(spec->steps[1].context, std::string(64, 'a'));
}

TEST(Devcontainer, ADockerfileAndItsFolder) {
  auto dev = parsed_container(
      R"({"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"V": "1"}, "target": "dev"}})");
  EXPECT_EQ(dev.dockerfile, ".devcontainer/Dockerfile");
  EXPECT_EQ(dev.build_folder, "");
  EXPECT_EQ(dev.target, "dev");
  auto here = parsed_container(R"({"dockerFile": "D", "remoteUser": "u"})");
  EXPECT_EQ(here.build_folder, ".devcontainer");
  auto written = to_written(here, "FROM base\nCOPY a b /c/\nCOPY . /d\n", std::string(64, 'a'));
  ASSERT_TRUE(written);
  auto spec = read_written(*written, {});
  ASSERT_TRUE(spec) << spec.error().message;
  EXPECT_EQ(spec->steps[0].sources, (std::vector<std::string>{".devcontainer/a", ".devcontainer/b"}));
  EXPECT_EQ(spec->steps[1].sources, std::vector<std::string>{".devcontainer"});
  EXPECT_EQ(spec->steps[2].sources, std::vector<std::string>{"."}) << "the workspace itself";
  EXPECT_EQ(to_written(here, "", std::string(64, 'a')).error().code, Code::invalid) << "its text is wanted";
}

TEST(Devcontainer, WhatIsWrongIsNamed) {
  for (auto [text, word] : {std::pair("[]", "not an object"), std::pair("{", "not an object"), std::pair("{}", "image"),
                            std::pair(R"({"image": 5})", "image"), std::pair(R"({"image": "a b"})", "image"),
                            std::pair(R"({"image": "a", "postcreate": "x"})", "\"postcreate\""),
                            std::pair(R"({"image": "a", "containerEnv": {"A": 5}})", "containerEnv"),
                            std::pair(R"({"image": "a", "postCreateCommand": [5]})", "postCreateCommand"),
                            std::pair(R"({"image": "a", "workspaceFolder": "x"})", "workspaceFolder"),
                            std::pair(R"({"image": "a", "features": {"../../x": {}}})", "leads out"),
                            std::pair(R"({"build": {"dockerfile": "../../D"}})", "leads out")}) {
    auto error = container_error(text);
    EXPECT_EQ(error.code, Code::invalid) << text;
    EXPECT_NE(error.message.find(word), std::string::npos) << error.message;
  }
  for (auto [text, word] : {std::pair(R"({"dockerComposeFile": "x"})", "several containers"),
                            std::pair(R"({"image": "a", "features": {"ghcr.example/x/y:1": {}}})", "registry"),
                            std::pair(R"({"image": "a", "initializeCommand": "x"})", "your own machine"),
                            std::pair(R"({"image": "a", "remoteEnv": {"A": "${localEnv:HOME}"}})", "localEnv")}) {
    auto error = container_error(text);
    EXPECT_EQ(error.code, Code::unsupported) << text;
    EXPECT_NE(error.message.find(word), std::string::npos) << error.message;
  }
}

}  // namespace
}  // namespace isola::builder
