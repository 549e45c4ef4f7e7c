// The limit of core files stays 1, the one value with which the kernel starts no core handler of the host that is a
// pipe (umh, as root, outside). For the filter of whatever code a sandbox may have taken over.
#pragma once

#include <array>

#include "kernel/seccomp_program.h"

namespace isola::boundary {

std::array<kernel::SeccompCall, 2> core_limit_calls();

}  // namespace isola::boundary
