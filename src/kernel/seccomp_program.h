// A system-call policy as data, compiled once into the smallest and shallowest filter we can make.
//
//   SeccompPolicy policy{.arch = kNativeArch, .newest = 466};
//   policy.calls = {{.number = __NR_read}, {.number = __NR_unshare, .rules = {…}, .otherwise =
//   SeccompAction::error(EPERM)}}; ISOLA_TRY(SeccompProgram program, SeccompProgram::compile(policy));   // once, in
//   the launcher …                                                                     // in the child, just before
//   exec: ISOLA_CHECK(program.install());
//
// Shape of the code: check the architecture, then a balanced tree of `number >= n` over ranges of neighbouring numbers
// with the same answer, then for the few calls with rules a block that looks at arguments. Installing a filter costs
// what the kernel needs to try every call number on it, so depth and length both count.
//
// A foreign architecture (int 0x80 on x86_64) and x32 do not exist as far as a guest can see: ENOSYS. Killing would
// say the same louder, but would turn a harmless probe into a dead process.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::kernel {

#if defined(__x86_64__)
constexpr uint32_t kNativeArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kNativeArch = AUDIT_ARCH_AARCH64;
#else
#error "Isola has no system-call policy for this architecture"
#endif

// What the kernel shall do: a SECCOMP_RET_* value with its data.
struct SeccompAction {
  uint32_t value;
  static SeccompAction allow();
  static SeccompAction error(int sys_errno);  // error(0): pretend that it worked, do nothing
  static SeccompAction kill_process();
  bool operator==(const SeccompAction&) const = default;
};

// (argument & mask) == value. The kernel cuts many arguments to 32 bits (int, unsigned int): for those test `low32`, or
// garbage in the high half would slip past the test and still reach the call.
struct ArgumentTest {
  enum class Width : uint8_t { low32, full64 };
  uint8_t argument;  // 0…5
  Width width;
  uint64_t mask;
  uint64_t value;
  bool operator==(const ArgumentTest&) const = default;

  static ArgumentTest is(uint8_t argument, uint32_t value);                     // low32, exact
  static ArgumentTest masked(uint8_t argument, uint32_t mask, uint32_t value);  // low32
  static ArgumentTest masked64(uint8_t argument, uint64_t mask, uint64_t value);
};

// If every test holds, this action.
struct SeccompRule {
  std::vector<ArgumentTest> tests;
  SeccompAction action;
  bool operator==(const SeccompRule&) const = default;
};

struct SeccompCall {
  uint32_t number;
  std::vector<SeccompRule> rules;                    // the first that holds decides
  SeccompAction otherwise = SeccompAction::allow();  // … or this
};

struct SeccompPolicy {
  uint32_t arch = kNativeArch;
  uint32_t newest = 0;                                            // the highest number that we know
  std::vector<SeccompCall> calls;                                 // each number at most once
  SeccompAction denied = SeccompAction::error(1 /* EPERM */);     // known, not listed
  SeccompAction unknown = SeccompAction::error(38 /* ENOSYS */);  // above newest (x32 too), or a foreign architecture
};

class SeccompProgram {
 public:
  static Result<SeccompProgram> compile(const SeccompPolicy& policy);

  const std::vector<sock_filter>& code() const { return code_; }
  // SHA-256 of the instructions, 64 hex digits: what a manifest records.
  const std::string& hash() const { return hash_; }
  // For the calling thread, without no_new_privs (setuid programs inside must keep working), so the caller needs
  // CAP_SYS_ADMIN in its user namespace. Allocates nothing unless it fails.
  Result<void> install() const;

 private:
  std::vector<sock_filter> code_;
  std::string hash_;
};

std::string hash_of(const std::vector<sock_filter>& code);

// The hash of the one filter that a child of ours really has, read back from the kernel: seizes the child, reads,
// lets go. A blocking read() or the like in the child goes on as if nothing had happened. Fails if the child has no
// filter or more than one. Needs CAP_SYS_ADMIN, and a caller that has no filter itself.
Result<std::string> installed_filter_hash(pid_t pid);

}  // namespace isola::kernel
