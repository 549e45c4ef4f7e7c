// User-mode Linux: a Linux kernel of the sandbox's own, as an ordinary program without privileges. The sandbox's
// programs are processes that this kernel traces; their system calls never reach the host's kernel, which sees what the
// program does: reading and writing two files, one network device and one socket, mapping memory, tracing its children.
//
// It runs in a box (jail/furnish.h) with its own user, pid, mount, network, ipc, uts and control-group namespaces, the
// sandbox's range of ids, no capability at all, a system-call filter of its own (syscall_policy.h), a root that holds
// nothing but the kernel, its archive, two disks and a tmpfs for the guest's memory, and limits around all of it.
// Whoever takes over that kernel (root inside can) is a process without privileges in an empty room.
//
//   /engine/linux   the program           /image   the template's blob, read-only
//   /initrd         isola-guest as /init  /disk    the sandbox's own files: an ext4 in a file of its layer
//   /ram            the guest's memory    8        the TAP, as a descriptor
//
// Process 1 of the box is our relay, and its end is the end of them all.
#pragma once

#include <memory>
#include <vector>

#include "boundary/box/box.h"
#include "boundary/uml/uml_kernel.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::uml {

class Uml : public box::Boxed {
 public:
  // The jail makes the boxes, and lives longer. The stage is set; the archive is put there.
  static Result<std::unique_ptr<Uml>> make(jail::Jail& jail, UmlKernel kernel);

  BoundaryKind kind() const override { return BoundaryKind::uml; }
  Engine engine() const override {
    return {.name = "user-mode-linux", .version = kernel_.version, .accelerated = false};
  }
  Result<std::unique_ptr<Launching>> begin(LaunchSpec spec) override;
  Result<MemoryHost> memory_host() override;
  Result<std::unique_ptr<Checkpointing>> checkpoint(Cell& cell, CheckpointSpec spec) override;
  bool has_fixed_limits() const override { return true; }

 private:
  Uml(jail::Jail& jail, UmlKernel kernel, IslandNetwork network, kernel::SeccompProgram filter)
      : Boxed(jail, std::move(network)), kernel_(std::move(kernel)), filter_(std::move(filter)) {}
  int next_processor();

  UmlKernel kernel_;
  kernel::SeccompProgram filter_;
  std::vector<int> processors_;  // that we may use
  size_t next_ = 0;
};

// How much of a sandbox's memory is its kernel's to give out; the rest is what the program itself needs of the host.
uint64_t guest_memory(uint64_t limit);
// The kernel's command line, without the program.
std::vector<std::string> command_line(const LaunchSpec& spec, bool ipv6);

}  // namespace isola::boundary::uml
