// The jail: Linux namespaces, an overlay root, idmapped layers, a capability bounding set, a seccomp allowlist and
// control groups. It shares the host's kernel, and says so wherever it is named.
#pragma once

#include <memory>
#include <optional>

#include "boundary/boundary.h"
#include "boundary/jail/checkpoint.h"
#include "boundary/jail/launching.h"
#include "boundary/jail/network_hand.h"
#include "boundary/jail/protections.h"
#include "kernel/cgroup.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::jail {

class Jail : public Boundary {
 public:
  // Compiles the filter and the network messages, once. The stage is set (stage.h) and is the working folder.
  static Result<std::unique_ptr<Jail>> make(kernel::CgroupTree cgroups);

  BoundaryKind kind() const override { return BoundaryKind::jail; }
  Engine engine() const override;
  std::string describe_protections() const override { return protections_.describe(); }
  Result<std::unique_ptr<Launching>> begin(LaunchSpec spec) override;
  Result<MemoryHost> memory_host() override;
  bool has_checkpoints() const { return criu_.complete(); }
  Result<std::unique_ptr<Checkpointing>> checkpoint(Cell& cell, CheckpointSpec spec) override;
  Result<void> verify_limits(const Limits& wanted, const kernel::CgroupLimits& installed) const override;
  Result<std::unique_ptr<Cell>> adopt(const CellName& name) override;

  // A box around an engine, for another boundary: what is `wanted`, but for ids, group and limits, is that one's
  // affair.
  // `filter`: for the relay and the engine, if the engine brings none of its own; it lives longer.
  Result<std::unique_ptr<Launching>> begin_box(LaunchSpec spec, Protections wanted, Outfit outfit,
                                               const kernel::SeccompProgram* filter = nullptr);

  // The helper that makes networks, before the first launch needs it (which else starts it, as does the next launch
  // after its death). When hand_fd() is readable it died: look_after_hand() ends the launches that waited for it.
  Result<void> start_hand();
  int hand_fd() const { return hand_ready_.get(); }
  void look_after_hand();
  bool is_hand(pid_t pid) const { return hand_ && hand_->pid() == pid; }

  // What every jail made here has installed, before what a launch adds (ids, cgroup, shown folders).
  const Protections& protections() const { return protections_; }

 private:
  Jail(kernel::CgroupTree cgroups, kernel::SeccompProgram filter, IslandNetwork network, Criu criu);
  Result<std::vector<MountRule>> mounts_of(pid_t pid) const;

  kernel::CgroupTree cgroups_;
  kernel::SeccompProgram filter_;
  IslandNetwork network_;
  Fd hand_ready_;  // epoll: the same for every hand
  std::shared_ptr<NetworkHand> hand_;
  Criu criu_;
  std::optional<MemoryHost> host_;  // asked once
  Protections protections_;
};

}  // namespace isola::boundary::jail
