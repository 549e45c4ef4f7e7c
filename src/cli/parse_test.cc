#include "cli/parse.h"

#include <gtest/gtest.h>

namespace isola::cli {
namespace {

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
  EXPECT_EQ(*parse_mount("/srv/x/"), (Mount{"/srv/x/", "/srv/x"}));
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
  options.pids = 7;
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
