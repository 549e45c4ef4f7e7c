#include "cli/completion.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "base/file.h"
#include "image/spawn.h"

namespace isola::cli {
namespace {

class CompletionTest : public ::testing::Test {
 protected:
  CompletionTest() {
    char name[] = "/tmp/isola-completion-XXXXXX";
    dir_ = ::mkdtemp(name);
    app_.add_option("--data", text_);
    app_.add_subcommand("run", "It's a run: more")->add_option("--memory", text_);
    auto* group = app_.add_subcommand("sandbox", "Sandboxes");
    group->add_subcommand("ls", "List")->add_flag("-q,--quiet", flag_);
    group->add_subcommand("exec", "Run")->add_option("id", text_);
  }
  ~CompletionTest() override { std::filesystem::remove_all(dir_); }
  // What bash offers for a line whose last word is being written.
  std::string offered(const std::string& words, int at) {
    std::string script = bash_completion(app_) + "isola() { echo i123 i456; }\nCOMP_WORDS=(" + words +
                         ")\nCOMP_CWORD=" + std::to_string(at) + "\n_isola\necho \"${COMPREPLY[*]}\"\n";
    EXPECT_TRUE(replace_file(dir_ + "/script", script));
    auto said = image::run_output({.argv = {"bash", "--norc", dir_ + "/script"}, .what = "completing"});
    return said ? *said : said.error().message;
  }
  CLI::App app_;
  std::string text_, dir_;
  bool flag_ = false;
};

TEST_F(CompletionTest, Bash) {
  EXPECT_EQ(offered("isola s", 1), "sandbox\n");
  EXPECT_EQ(offered("isola sandbox ''", 2), "ls exec\n");
  EXPECT_EQ(offered("isola sandbox ls --q", 3), "--quiet\n");
  EXPECT_EQ(offered("isola --data x run --m", 4), "--memory\n");
  EXPECT_EQ(offered("isola sandbox exec i4", 3), "i456\n");
  EXPECT_EQ(offered("isola sandbox ls i4", 3), "\n");
  EXPECT_EQ(offered("isola run -- s", 3), "\n") << "the command inside is not ours";
}

TEST_F(CompletionTest, FishNamesEverythingAndQuotesIt) {
  auto script = fish_completion(app_);
  EXPECT_NE(script.find("-a run -d 'It\\'s a run'"), std::string::npos) << script;
  EXPECT_NE(
      script.find("-n '__fish_seen_subcommand_from sandbox; and not __fish_seen_subcommand_from ls exec' -f -a ls"),
      std::string::npos)
      << script;
  EXPECT_NE(script.find("-l quiet"), std::string::npos) << script;
}

}  // namespace
}  // namespace isola::cli
