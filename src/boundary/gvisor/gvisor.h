// gVisor: the guest's system calls are answered by a kernel written for that (runsc's sentry), an ordinary process
// without privileges; the host's kernel sees only what that process does.
//
// runsc itself runs in a box (jail/furnish.h), a jail without our filter: its own user, pid, mount, network, ipc, uts
// and control-group namespaces, the sandbox's range of ids, a root that holds nothing but the engine, the bundle and
// the sandbox's files, limits around all of it. Whoever breaks out of runsc is the sandbox's root in an empty room.
// Process 1 of the box is our relay, so that its end is the end of every process of runsc's; what runsc writes down
// about its containers lies in the box and goes with it. Nothing of it is left to be cleared away.
#pragma once

#include <memory>
#include <optional>

#include "boundary/box/box.h"
#include "boundary/gvisor/runsc.h"

namespace isola::boundary::gvisor {

class Gvisor : public box::Boxed {
 public:
  // The jail makes the boxes, and lives longer.
  static Result<std::unique_ptr<Gvisor>> make(jail::Jail& jail, Runsc runsc);

  BoundaryKind kind() const override { return BoundaryKind::gvisor; }
  Engine engine() const override { return {.name = "runsc", .version = runsc_.version, .accelerated = false}; }
  const Runsc& runsc() const { return runsc_; }
  Result<std::unique_ptr<Launching>> begin(LaunchSpec spec) override;
  Result<MemoryHost> memory_host() override;
  Result<std::unique_ptr<Checkpointing>> checkpoint(Cell& cell, CheckpointSpec spec) override;

 private:
  Gvisor(jail::Jail& jail, Runsc runsc, IslandNetwork network)
      : Boxed(jail, std::move(network)), runsc_(std::move(runsc)) {}

  Runsc runsc_;
  std::optional<MemoryHost> host_;  // asked once
};

}  // namespace isola::boundary::gvisor
