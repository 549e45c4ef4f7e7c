#include "cli/inner_command.h"

#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

namespace isola::cli {
namespace {

class InnerCommand : public ::testing::Test {
 protected:
  InnerCommand() {
    app_.add_option("--data", data_);
    auto* run = app_.add_subcommand("run");
    run->add_option("--env,-e", env_)->allow_extra_args(false);
    run->add_flag("-t,--tty", tty_);
    run->add_option("--memory", memory_);
    run_ = takes_inner_command(*run, 0);
    auto* exec = app_.add_subcommand("sandbox")->add_subcommand("exec");
    exec->add_option("id", id_);
    exec->add_option("--user,-u", user_);
    exec_ = takes_inner_command(*exec, 1);
  }
  ~InnerCommand() override { forget_inner_commands(); }
  // How many words are left for the parser.
  int cut(std::vector<std::string> words) {
    words.insert(words.begin(), "isola");
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    return cut_inner_command(app_, static_cast<int>(argv.size()), argv.data()) - 1;
  }
  using List = std::vector<std::string>;
  CLI::App app_;
  std::string data_, id_, user_, memory_;
  List env_;
  bool tty_ = false;
  Words run_, exec_;
};

TEST_F(InnerCommand, BeginsAfterOurOptionsAndTheirValues) {
  EXPECT_EQ(cut({"--data", "d", "run", "-e", "A=1", "-t", "echo", "-t", "--", "x"}), 6);
  EXPECT_EQ(*run_, (List{"echo", "-t", "--", "x"}));
  EXPECT_EQ(cut({"run", "--env=A=1", "--", "--help"}), 2);
  EXPECT_EQ(*run_, (List{"--help"}));
}

TEST_F(InnerCommand, AnythingMayLookLikeSomethingElse) {
  EXPECT_EQ(cut({"run", "--memory", "64M", "ls", "--memory", "x"}), 3);
  EXPECT_EQ(cut({"--data", "run", "run", "ls"}), 3) << "a value may look like a command";
  EXPECT_EQ(cut({"run", "-", "x"}), 1) << "a single dash is a word";
  EXPECT_EQ(cut({"run", "-e", "--", "--", "ls"}), 3) << "the value of -e, odd as it is";
  EXPECT_EQ(*run_, (List{"ls"}));
  EXPECT_EQ(cut({"run", "git", "checkout", "--", "file"}), 1);
  EXPECT_EQ(*run_, (List{"git", "checkout", "--", "file"}));
  EXPECT_EQ(cut({"run", "--memory"}), 2) << "the value is missing: the parser says so";
  EXPECT_EQ(cut({}), 0);
}

TEST_F(InnerCommand, OursStandBeforeIt) {
  EXPECT_EQ(cut({"sandbox", "exec", "-u", "user", "i1", "--", "ls", "--", "a"}), 5);
  EXPECT_EQ(*exec_, (List{"ls", "--", "a"}));
  EXPECT_EQ(cut({"sandbox", "exec", "i1", "-u", "user", "ls", "-u"}), 5);
  EXPECT_EQ(*exec_, (List{"ls", "-u"}));
  EXPECT_EQ(cut({"sandbox", "exec", "i1"}), 3);
}

TEST_F(InnerCommand, OtherCommandsAreLeftAlone) {
  EXPECT_EQ(cut({"sandbox", "ls", "--", "x"}), 4);
  EXPECT_EQ(cut({"nonsense", "run", "x"}), 3);
}

}  // namespace
}  // namespace isola::cli
