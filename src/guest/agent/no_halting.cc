#include "guest/agent/no_halting.h"

#include <linux/audit.h>
#include <linux/reboot.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

namespace isola::guest {

std::array<sock_filter, 11> no_halting_filter() {
  constexpr auto kNumber = static_cast<uint32_t>(offsetof(seccomp_data, nr));
  constexpr auto kArch = static_cast<uint32_t>(offsetof(seccomp_data, arch));
  constexpr auto kCommand = static_cast<uint32_t>(offsetof(seccomp_data, args) + 2 * sizeof(uint64_t));
#if defined(__x86_64__)
  constexpr uint32_t kNative = AUDIT_ARCH_X86_64;
#else
  constexpr uint32_t kNative = AUDIT_ARCH_AARCH64;
#endif
  constexpr uint32_t kOn32Bit = 88;  // of i386 and arm alike
  constexpr uint32_t kWithoutX32 = ~0x40000000u;
  return {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kArch),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kNative, 2, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kOn32Bit, 3, 6),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_STMT(BPF_ALU | BPF_AND | BPF_K, kWithoutX32),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_reboot, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCommand),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, LINUX_REBOOT_CMD_HALT, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
}

}  // namespace isola::guest
