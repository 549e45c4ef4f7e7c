// A virtual machine: a Linux kernel of the sandbox's own on (virtual) hardware of its own. The host's kernel sees a
// program, QEMU, that reads and writes two files, one network device and a few sockets; with KVM the processor itself
// keeps the guest apart, without it QEMU translates every instruction.
//
// QEMU is what an attacker meets next, so it runs in a box (box/box.h) with the sandbox's range of ids, no capability
// at all, a system-call filter of its own (syscall_policy.h), and a root that holds QEMU and its libraries, the kernel,
// its archive, and two disks. Process 1 of the box is our relay, and its end is the end of them all.
//
// The guest's memory is a memfd that the relay holds. A checkpoint writes it down beside the state of the devices; what
// is restored maps that file privately, so that any number of sandboxes share what none of them changes (checkpoint.h).
#pragma once

#include <memory>
#include <optional>

#include "boundary/box/box.h"
#include "boundary/microvm/machine.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::microvm {

class Microvm : public box::Boxed {
 public:
  // The stage is set; the archive is put there. Tries whether KVM works, if that is not known yet.
  static Result<std::unique_ptr<Microvm>> make(jail::Jail& jail, Machine machine);

  BoundaryKind kind() const override { return BoundaryKind::microvm; }
  Engine engine() const override {
    return {.name = "qemu", .version = machine_.qemu_version, .accelerated = machine_.kvm};
  }
  const Machine& machine() const { return machine_; }
  Result<std::unique_ptr<Launching>> begin(LaunchSpec spec) override;
  Result<MemoryHost> memory_host() override;
  Result<std::unique_ptr<Checkpointing>> checkpoint(Cell& cell, CheckpointSpec spec) override;
  bool has_fixed_limits() const override { return true; }

 private:
  Microvm(jail::Jail& jail, Machine machine, IslandNetwork network, kernel::SeccompProgram filter)
      : Boxed(jail, std::move(network)), machine_(std::move(machine)), filter_(std::move(filter)) {}

  Machine machine_;
  kernel::SeccompProgram filter_;
  std::optional<MemoryHost> host_;  // asked once
};

}  // namespace isola::boundary::microvm
