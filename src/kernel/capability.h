// Capabilities: sets as 64-bit masks, and giving them up.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace isola::kernel {

constexpr uint64_t capability(int number) { return uint64_t{1} << number; }

// Drops every capability that is not in `keep` from the bounding set, so that no exec, setuid or not, can have it.
Result<void> limit_bounding_set(uint64_t keep);
// Permitted, effective and inheritable become exactly these (no ambient ones). Needs no exec.
Result<void> set_capabilities(uint64_t permitted, uint64_t effective, uint64_t inheritable);
// This thread does without one of its capabilities for a while: what the kernel lets that one pass over holds
// meanwhile.
class Without {
 public:
  static Result<Without> begin(int number);
  Without(Without&& other) noexcept : mask_(other.mask_) { other.mask_ = 0; }
  Without& operator=(Without&&) = delete;
  ~Without();  // takes it again

 private:
  explicit Without(uint64_t mask) : mask_(mask) {}
  uint64_t mask_;  // 0: it was not there
};
// Changes of uid leave the capabilities alone: the launcher borrows a sandbox's id for a moment and stays privileged.
Result<void> keep_capabilities_across_setuid();

}  // namespace isola::kernel
