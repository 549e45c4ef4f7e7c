// Which system calls a program inside the jail may make: an allowlist for ordinary programs (shells, compilers,
// package managers, interpreters, databases, debuggers, browsers without their own sandbox), and what it leaves out.
//
// Left out, with EPERM: everything that changes mounts, namespaces, time, modules, keys or quotas, and the large
// optional doors into the kernel (bpf, perf, io_uring, userfaultfd). Some answers are chosen so that programs take
// their own fall-back: clone3 does not exist (ENOSYS: C libraries then use clone, whose flags a filter can see),
// Landlock does not exist (a checkpoint would lose it silently), nor does kernel aio (a machine has few rings), sockets
// of other families are "not supported". sync() succeeds and does nothing: it would flush every disk of the host, and a
// sandbox's own writable layer is made durable by the host, not from inside.
#pragma once

#include "base/error.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary {

kernel::SeccompPolicy jail_syscall_policy();

// The same, compiled.
Result<kernel::SeccompProgram> jail_syscall_program();

}  // namespace isola::boundary
