// Which system calls a kernel that runs as a program may make on the host: an allowlist, and a short one. It covers the
// relay, the kernel's threads and the processes that it traces for the guest; what those call for the guest is answered
// by that kernel before the filter could see it.
//
// The guest's root can take that kernel over, so this list is what the host's kernel shows to it: files that are open
// or in the box, memory, signals, tracing its own children, timers, sockets that it was given. No new socket but pairs,
// no namespaces, mounts, keys, modules, bpf, perf, io_uring, userfaultfd; ioctl only where a terminal is asked for.
#pragma once

#include "base/error.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::uml {

kernel::SeccompPolicy kernel_syscall_policy();
Result<kernel::SeccompProgram> kernel_syscall_program();

}  // namespace isola::boundary::uml
