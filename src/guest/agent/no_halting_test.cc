// The filter of a virtual machine's programs, by evaluating it.
#include "guest/agent/no_halting.h"

#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/reboot.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include <cerrno>

#include "kernel/bpf_evaluator.h"
#include "kernel/seccomp_program.h"

namespace isola::guest {
namespace {

uint32_t halting_answer(uint32_t arch, uint32_t number, uint32_t command) {
  const auto code = no_halting_filter();
  seccomp_data call{.nr = static_cast<int>(number), .arch = arch};
  call.args[2] = command;
  return kernel::evaluate({code.data(), code.size()}, call).value_or(SECCOMP_RET_KILL_PROCESS);
}

constexpr uint32_t kRefused = SECCOMP_RET_ERRNO | EPERM;
constexpr uint32_t kHalt = LINUX_REBOOT_CMD_HALT;

TEST(NoHalting, WhicheverWayItIsAskedFor) {
  EXPECT_EQ(halting_answer(kernel::kNativeArch, SYS_reboot, kHalt), kRefused);
  EXPECT_EQ(halting_answer(AUDIT_ARCH_I386, 88, kHalt), kRefused) << "int 0x80";
  EXPECT_EQ(halting_answer(AUDIT_ARCH_X86_64, 0x40000000 | SYS_reboot, kHalt), kRefused) << "x32";
}

TEST(NoHalting, NothingElseIsRefused) {
  for (uint32_t end : {LINUX_REBOOT_CMD_RESTART, LINUX_REBOOT_CMD_POWER_OFF}) {
    EXPECT_EQ(halting_answer(kernel::kNativeArch, SYS_reboot, end), SECCOMP_RET_ALLOW);
    EXPECT_EQ(halting_answer(AUDIT_ARCH_I386, 88, end), SECCOMP_RET_ALLOW);
  }
  EXPECT_EQ(halting_answer(kernel::kNativeArch, 88, kHalt), SECCOMP_RET_ALLOW) << "symlink";
  EXPECT_EQ(halting_answer(AUDIT_ARCH_I386, SYS_reboot, kHalt), SECCOMP_RET_ALLOW) << "a poll";
}

}  // namespace
}  // namespace isola::guest
