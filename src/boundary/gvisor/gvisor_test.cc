#include <gtest/gtest.h>

#include "boundary/gvisor/bundle.h"
#include "boundary/gvisor/runsc.h"
#include "boundary/jail/protections.h"

namespace isola::boundary::gvisor {
namespace {

const std::string kFlags24 =
    "  -directfs\n    \tdirectly access the container filesystems\n  -overlay2 value\n    \twrap mounts\n"
    "  -platform string\n    \tspecifies which platform to use: systrap (default), ptrace, kvm. (default "
    "\"systrap\")\n";
const std::string kFlags22 =
    "  -platform string\n    \tspecifies which platform to use: ptrace (default), kvm. (default \"ptrace\")\n";

TEST(Runsc, ANewOneUsesSystrap) {
  auto runsc = parse_runsc("runsc version 0.0~20240729.0\nspec: 1.0.2-dev\n", kFlags24);
  ASSERT_TRUE(runsc) << runsc.error().message;
  EXPECT_EQ(runsc->version, "0.0~20240729.0");
  EXPECT_EQ(runsc->platform, "systrap");
  EXPECT_EQ(runsc->concern(), "");
  auto flags = runsc->flags("/run");
  auto has = [&](const char* flag) { return std::find(flags.begin(), flags.end(), flag) != flags.end(); };
  EXPECT_TRUE(has("--platform=systrap"));
  EXPECT_TRUE(has("--directfs=false")) << "the sentry opens no files of the host";
  EXPECT_TRUE(has("--overlay2=none")) << "what is written is limited by the layer";
  EXPECT_TRUE(has("--network=sandbox"));
}

TEST(Runsc, AnOldOneWorksWithPtraceAndIsAConcern) {
  auto runsc = parse_runsc("runsc version 0.0~20221219.0\n", kFlags22);
  ASSERT_TRUE(runsc) << runsc.error().message;
  EXPECT_EQ(runsc->platform, "ptrace");
  EXPECT_NE(runsc->concern(), "");
  for (const auto& flag : runsc->flags("/run")) {
    EXPECT_FALSE(flag.starts_with("--directfs")) << "it would not start";
    EXPECT_FALSE(flag.starts_with("--overlay2")) << "it would not start";
  }
}

TEST(Runsc, KvmIsNeverTaken) {
  auto runsc = parse_runsc("runsc version x\n", "specifies which platform to use: kvm.\n");
  ASSERT_FALSE(runsc);
  EXPECT_EQ(runsc.error().code, Code::unsupported);
}

TEST(Runsc, WhatTellsNoVersionIsNone) {
  EXPECT_FALSE(parse_runsc("", ""));
  EXPECT_FALSE(parse_runsc("Python 3.11\n", kFlags24));
}

TEST(Bundle, SaysWhatTheSandboxMayHave) {
  LaunchSpec spec{.id = "iaaaaaaaaaaaaaaaaaaaa"};
  spec.limits.open_files = 77;
  spec.shown.push_back({.tree = {}, .target = "/data \"x\"\\", .read_only = true});
  spec.shown.push_back({.tree = {}, .target = "/work", .read_only = false});
  std::string text = describe_bundle(spec, jail::kCapabilities);
  auto has = [&](const std::string& part) { return text.find(part) != std::string::npos; };
  EXPECT_TRUE(has(R"("args":["/dev/.isola/isola-guest","--id","iaaaaaaaaaaaaaaaaaaaa","--stdio"])")) << text;
  EXPECT_TRUE(has(R"("hard":77,"soft":77)")) << text;
  EXPECT_TRUE(has(R"({"destination":"/data \"x\"\\","type":"bind","source":"/shown/0","options":["bind","ro",)"))
      << text;
  EXPECT_TRUE(has(R"({"destination":"/work","type":"bind","source":"/shown/1","options":["bind","rw",)")) << text;
  EXPECT_TRUE(has(R"({"type":"network","path":"/wire"})")) << text;
  EXPECT_TRUE(has("CAP_SETUID"));
  for (const char* never : {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_RAW", "CAP_NET_ADMIN"})
    EXPECT_FALSE(has(never)) << never;
}

TEST(Bundle, TheMachineIsAsLargeAsTheLimit) {
  EXPECT_NE(describe_memory(512 << 20).find("524288 kB"), std::string::npos);
}

}  // namespace
}  // namespace isola::boundary::gvisor
