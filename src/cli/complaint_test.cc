#include "cli/complaint.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace isola::cli {
namespace {

std::string said(const std::vector<std::string>& words) {
  CLI::App app("islands", "isola");
  app.require_subcommand(1);
  app.add_subcommand("run", "");
  auto* sandbox = app.add_subcommand("sandbox", "");
  sandbox->require_subcommand(1);
  for (const char* name : {"create", "ls", "get", "kill"}) sandbox->add_subcommand(name, "")->add_option("--name");
  auto* key = app.add_subcommand("key", "");
  key->require_subcommand(1);
  for (const char* name : {"create", "ls", "revoke"}) key->add_subcommand(name, "");
  app.add_subcommand("secret-helper", "")->group("");
  std::vector<std::string> reversed(words.rbegin(), words.rend());
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    return complaint(app, error.what(), words);
  }
  return "";
}

TEST(Complaint, WhatMayHaveBeenMeant) {
  EXPECT_EQ(said({"sanbox", "ls"}), "there is no command 'sanbox': did you mean 'sandbox'? (see isola --help)");
  EXPECT_EQ(said({"sandbox", "lst"}),
            "there is no command 'sandbox lst': did you mean 'sandbox ls'? (see isola sandbox --help)");
  EXPECT_EQ(said({"sandbox", "list"}),
            "there is no command 'sandbox list': did you mean 'sandbox ls'? (see isola sandbox --help)");
  EXPECT_EQ(said({"sandbox", "rm", "x"}),
            "there is no command 'sandbox rm': did you mean 'sandbox kill'? (see isola sandbox --help)");
  EXPECT_EQ(said({"kill", "x"}), "there is no command 'kill': did you mean 'sandbox kill'? (see isola --help)");
  EXPECT_EQ(said({"revoke", "x"}), "there is no command 'revoke': did you mean 'key revoke'? (see isola --help)");
}

TEST(Complaint, WhatThereIs) {
  EXPECT_EQ(said({"sandbox", "frobnicate"}),
            "there is no command 'sandbox frobnicate': it is one of create, ls, get, kill");
  EXPECT_EQ(said({"frobnicate"}), "there is no command 'frobnicate' (see isola --help)");
  EXPECT_EQ(said({"secret-helpers"}), "there is no command 'secret-helpers' (see isola --help)");
}

TEST(Complaint, OtherMistakesSayWhereToLook) {
  EXPECT_NE(said({"sandbox", "create", "--nam", "x"}).find("(see isola sandbox create --help)"), std::string::npos);
  EXPECT_NE(said({"sandbox"}).find("(see isola sandbox --help)"), std::string::npos);
  EXPECT_EQ(said({"run"}), "");
}

}  // namespace
}  // namespace isola::cli
