#include "cli/host_facts.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel/process.h"

namespace isola::cli {
namespace {

TEST(HostFacts, TheSameHostTwiceIsUnchanged) { EXPECT_EQ(changed(host_facts(), host_facts()), ""); }

// A name that really changed, in a namespace that nobody else sees.
TEST(HostFacts, ANameThatWasSetIsSeen) {
  auto child = kernel::spawn(CLONE_NEWUTS, [] {
    HostFacts before = host_facts();
    if (::sethostname("isola-taken-over", 16) < 0) return 2;
    return changed(before, host_facts()) == "the host's name" ? 0 : 1;
  });
  ASSERT_TRUE(child);
  int status = 1;
  ::waitpid(child->pid, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(HostFacts, AClockThatWasMovedIsSeen) {
  HostFacts before = host_facts(), after = before;
  after.clock_offset_ms += kMostDriftMs / 2;
  EXPECT_EQ(changed(before, after), "");
  after.clock_offset_ms += 2 * kMostDriftMs;
  EXPECT_EQ(changed(before, after), "the host's clock");
  after.clock_offset_ms = before.clock_offset_ms - 3600 * 1000;
  EXPECT_EQ(changed(before, after), "the host's clock");
}

TEST(HostFacts, ASettingThatWasWrittenIsNamed) {
  HostFacts before = host_facts(), after = before;
  after.settings["/proc/sys/kernel/core_pattern"] = "|/tmp/evil";
  EXPECT_EQ(changed(before, after), "/proc/sys/kernel/core_pattern");
}

}  // namespace
}  // namespace isola::cli
