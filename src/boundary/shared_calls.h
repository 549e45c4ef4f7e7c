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

// mmap, memfd_create and shmget without huge pages. Those that the operator set aside (vm.nr_hugepages) belong to the
// whole machine, and no memory limit counts them: who asks for some gets the answer of a machine that has none.
std::array<kernel::SeccompCall, 3> no_huge_pages_calls();

// prctl without core scheduling: next to a thread with a cookie of its own nothing of anybody else runs on the same
// core. A sandbox could keep its neighbours off processors that its limit does not count. The answer of a kernel
// without it.
kernel::SeccompCall no_core_scheduling_call();

}  // namespace isola::boundary
