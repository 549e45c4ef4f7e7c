// Which system calls QEMU may make on the host: an allowlist, and a short one, that covers the relay as well.
//
// The guest's root can attack QEMU through the devices that it is given, so this list is what the host's kernel shows
// to whoever got that far: files that are open or in the box, memory, threads, signals, timers, sockets that it was
// given. No new socket but pairs, no other program's memory, no namespaces, mounts, keys, modules, bpf, perf, io_uring,
// userfaultfd; of ioctl what the network device needs and, if the processor helps, KVM's own.
#pragma once

#include "base/error.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::microvm {

kernel::SeccompPolicy machine_syscall_policy(bool kvm);
Result<kernel::SeccompProgram> machine_syscall_program(bool kvm);

}  // namespace isola::boundary::microvm
