#include "cli/parse.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

using Words = std::vector<std::string>;

// As in main.cc: these take a value, in the one place or the other.
bool takes_value(bool in_run, const std::string& option) {
  if (option == "--data" || option == "--cache") return true;
  return in_run && (option == "--memory" || option == "--env" || option == "-e");
}

size_t begins(const Words& words) { return command_begins(words, takes_value); }

TEST(CommandBegins, AfterOurOptionsAndTheirValues) {
  EXPECT_EQ(begins({"run", "ls", "-l"}), 1u);
  EXPECT_EQ(begins({"run", "--cold", "ls"}), 2u);
  EXPECT_EQ(begins({"run", "--memory", "64M", "ls", "--memory", "x"}), 3u);
  EXPECT_EQ(begins({"run", "--memory=64M", "ls"}), 2u);
  EXPECT_EQ(begins({"run", "-e", "A=1", "-eB=2", "env"}), 4u);
  EXPECT_EQ(begins({"--data", "run", "run", "ls"}), 3u) << "a value may look like a command";
  EXPECT_EQ(begins({"--data=/d", "--json", "run", "-t", "sh"}), 4u);
  EXPECT_EQ(begins({"run", "-", "x"}), 1u) << "a single dash is a word";
}

TEST(CommandBegins, AtTheFirstDoubleDash) {
  EXPECT_EQ(begins({"run", "--", "ls"}), 1u);
  EXPECT_EQ(begins({"run", "--cold", "--", "git", "checkout", "--", "file"}), 2u);
  EXPECT_EQ(begins({"run", "git", "checkout", "--", "file"}), 1u);
  EXPECT_EQ(begins({"run", "-e", "--", "--", "ls"}), 3u) << "the value of -e, odd as it is";
}

TEST(CommandBegins, OtherCommandsHaveNone) {
  EXPECT_EQ(begins({}), 0u);
  EXPECT_EQ(begins({"doctor"}), 1u);
  EXPECT_EQ(begins({"template", "build", "run"}), 3u);
  EXPECT_EQ(begins({"run"}), 1u);
  EXPECT_EQ(begins({"run", "--memory", "64M"}), 3u);
  EXPECT_EQ(begins({"run", "--memory"}), 2u) << "the value is missing: the parser says so";
}

TEST(Environment, NameAndValue) {
  EXPECT_TRUE(check_environment({}));
  EXPECT_TRUE(check_environment({"A=1", "B=", "C=x=y", "D= "}));
  for (const char* bad : {"A", "=x", "", "="}) {
    auto checked = check_environment({"GOOD=1", bad});
    ASSERT_FALSE(checked) << bad;
    EXPECT_EQ(checked.error().code, Code::invalid);
  }
}

TEST(Mounts, HostAndInside) {
  EXPECT_EQ(*parse_mount("/srv/x"), (Mount{"/srv/x", "/srv/x"}));
  EXPECT_EQ(*parse_mount("/srv/x:/data"), (Mount{"/srv/x", "/data"}));
  EXPECT_EQ(*parse_mount("rel:/data"), (Mount{"rel", "/data"}));
  EXPECT_EQ(*parse_mount("/a:/b:c"), (Mount{"/a", "/b:c"}));
  for (const char* bad : {"", ":", ":/x", "rel", "/a:", "/a:b", "/a:./b"}) EXPECT_FALSE(parse_mount(bad)) << bad;
}

TEST(LimitsOf, WhatIsWrittenOverTheDefaults) {
  RunOptions options;
  auto plain = limits_of(options);
  ASSERT_TRUE(plain);
  EXPECT_EQ(*plain, boundary::Limits{});
  options.memory = "64M", options.disk = "1.5G", options.io = "50M", options.timeout = "5s";
  options.limits.pids = 7;
  auto limits = limits_of(options);
  ASSERT_TRUE(limits);
  EXPECT_EQ(limits->memory, 64u << 20);
  EXPECT_EQ(limits->disk, 3u << 29);
  EXPECT_EQ(limits->io_bytes_per_second, 50u << 20);
  EXPECT_EQ(limits->wall_time, std::chrono::seconds(5));
  EXPECT_EQ(limits->pids, 7u);
  EXPECT_EQ(limits->open_files, boundary::Limits{}.open_files);
}

TEST(LimitsOf, NonsenseIsNamed) {
  for (auto field : {&RunOptions::memory, &RunOptions::disk, &RunOptions::io, &RunOptions::timeout}) {
    RunOptions options;
    for (const char* bad : {"x", "-1", "64Q", "1 M", "nan"}) {
      options.*field = bad;
      auto limits = limits_of(options);
      ASSERT_FALSE(limits) << bad;
      EXPECT_NE(limits.error().message.find(bad), std::string::npos) << limits.error().message;
    }
  }
  RunOptions never;
  never.timeout = "0s";
  EXPECT_FALSE(limits_of(never));
}

}  // namespace
}  // namespace isola::cli
