#include <gtest/gtest.h>

#include <algorithm>

#include "boundary/gvisor/bundle.h"
#include "boundary/gvisor/checkpoint.h"
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

TEST(Runsc, OnlyANewOneKeepsMemory) {
  const std::string disconnects = kFlags24 + "  -net-disconnect-ok\n    \tdisconnect upon save\n";
  auto good = parse_runsc("runsc version 0.0~20240729.0\n", disconnects);
  ASSERT_TRUE(good);
  EXPECT_TRUE(good->keeps_memory());
  auto flags = good->flags("/run");
  EXPECT_NE(std::find(flags.begin(), flags.end(), "--net-disconnect-ok=true"), flags.end());
  EXPECT_TRUE(parse_runsc("runsc version release-20260101.0\n", disconnects)->keeps_memory());
  for (const auto& [version, text] : {std::pair{"0.0~20221219.0", kFlags22}, std::pair{"0.0~20240101.0", disconnects},
                                      std::pair{"0.0~20240729.0", kFlags24}}) {
    auto old = parse_runsc(std::string("runsc version ") + version + "\n", text);
    ASSERT_TRUE(old);
    auto keeps = old->keeps_memory();
    ASSERT_FALSE(keeps) << version;
    EXPECT_EQ(keeps.error().code, Code::unsupported);
    EXPECT_NE(keeps.error().message.find(version), std::string::npos) << keeps.error().message;
  }
}

TEST(Checkpoint, SaysWhatWasInTheWay) {
  EXPECT_EQ(reason_of("checkpoint failed: checkpointing container \"isola\": encoding error: "
                      "gofer.dentry(\"root/gone\").beforeSave: deleted and invalidated dentries can't be restored:\n"
                      "goroutine 36 [running]:\n"),
            "a file that was deleted is still open inside, and this runsc cannot keep that");
  EXPECT_EQ(reason_of("loading container: file does not exist\nmore\n"), "loading container: file does not exist");
  EXPECT_EQ(reason_of("bad \x1b[31m name:\n"), "bad ?[31m name");
  EXPECT_EQ(reason_of(std::string(5000, 'x')).size(), 300u);
  EXPECT_NE(reason_of(""), "");
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
  EXPECT_TRUE(has(R"("args":["/dev/.isola/isola-guest","--stdio"])")) << text;
  EXPECT_FALSE(has(spec.id)) << "what is restored as another sandbox finds the same description";
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
