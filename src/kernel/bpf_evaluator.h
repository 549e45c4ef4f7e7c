// Runs a seccomp filter on one made-up system call, as the kernel would: for unit tests of policies, and for
// `isola prove`, which evaluates what it read back from a running sandbox.
//
//   evaluate(program.code(), {.nr = __NR_socket, .arch = kNativeArch, .args = {AF_ALG, SOCK_SEQPACKET, 0}})
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <cstdint>
#include <span>

#include "base/error.h"

namespace isola::kernel {

// The SECCOMP_RET_* value; an error (corrupt) for code that the kernel would not have accepted.
Result<uint32_t> evaluate(std::span<const sock_filter> code, const seccomp_data& call);

}  // namespace isola::kernel
