// What the filters of all boundaries have in common, of the jail as of the box around an engine that a sandbox may have
// taken over.
#pragma once

#include <array>

#include "kernel/seccomp_program.h"

namespace isola::boundary {

// The limit of core files stays 1, the one value with which the kernel starts no core handler of the host that is a
// pipe (umh, as root, outside).
std::array<kernel::SeccompCall, 2> core_limit_calls();

// setsockopt without the filters of sockets. These are compiled into a pool that the whole machine shares and that
// belongs to no group (net.core.bpf_jit_limit): where it is empty no filter can be installed, and no sandbox launched.
kernel::SeccompCall no_socket_filters_call();

}  // namespace isola::boundary
