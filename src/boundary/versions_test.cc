#include "boundary/versions.h"

#include <gtest/gtest.h>

namespace isola::boundary {
namespace {

TEST(Versions, ASeriesIsGoodFromItsFixOn) {
  for (const char* good :
       {"5.4.300", "5.10.210", "5.15.149", "6.1.76", "6.1.140-1", "6.6.15", "6.7.3", "6.8.0", "6.18.44-fc", "7.0"})
    EXPECT_EQ(known_concern(Program::kernel, good), "") << good;
  for (const char* bad : {"5.10.209", "5.15.148", "6.1.75", "6.6.14-rc", "6.7.2", "5.19.17", "6.5.13", "6.2"})
    EXPECT_NE(known_concern(Program::kernel, bad).find("CVE-2024-1086"), std::string::npos) << bad;
  EXPECT_EQ(known_concern(Program::kernel, "6.1.75"),
            "Linux 6.1.75 lets a local user become root through nf_tables (CVE-2024-1086): 6.1.76 or newer does not");
}

TEST(Versions, OtherPrograms) {
  EXPECT_EQ(known_concern(Program::criu, "4.1.1"), "");
  EXPECT_EQ(known_concern(Program::criu, "4.2.1"), "");
  EXPECT_NE(known_concern(Program::criu, "3.17.1"), "");
  EXPECT_NE(known_concern(Program::criu, "4.1"), "");
  EXPECT_EQ(known_concern(Program::runsc, "0.0~20240729.0"), "");
  EXPECT_EQ(known_concern(Program::runsc, "release-20250707.0"), "");
  EXPECT_NE(known_concern(Program::runsc, "0.0~20221219.0"), "");
  EXPECT_EQ(known_concern(Program::qemu, "7.2.22"), "");
  EXPECT_NE(known_concern(Program::qemu, "7.2.10"), "");
  EXPECT_NE(known_concern(Program::qemu, "8.1.5"), "") << "a series that never got it";
  EXPECT_EQ(known_concern(Program::qemu, "10.0.2"), "");
}

TEST(Versions, WhatIsNoVersionIsNoConcern) {
  for (Program program : {Program::kernel, Program::criu, Program::runsc, Program::qemu})
    for (const char* text : {"", "unknown", "v", "-1.2", ".5"}) EXPECT_EQ(known_concern(program, text), "") << text;
}

TEST(Versions, AreFoundInWhatProgramsPrint) {
  EXPECT_EQ(version_in("Version: 4.2.1\n"), "4.2.1");
  EXPECT_EQ(version_in("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\n"), "7.2.22");
  EXPECT_EQ(version_in("no version"), "");
  EXPECT_EQ(version_in("2 words"), "");
}

TEST(Versions, OfAKernelAsItsAuthorsCount) {
  EXPECT_EQ(kernel_version("6.1.0-18-amd64", "#1 SMP PREEMPT_DYNAMIC Debian 6.1.76-1 (2024-02-01)"), "6.1.76-1");
  EXPECT_EQ(kernel_version("6.5.0-41-generic", "#41~22.04.2-Ubuntu SMP"), "") << "its own count says nothing";
  EXPECT_EQ(kernel_version("6.6.14", "#1 SMP"), "6.6.14");
}

}  // namespace
}  // namespace isola::boundary
