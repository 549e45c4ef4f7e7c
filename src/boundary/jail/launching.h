// A jail on its way to life: from the clone to the moment when its guest can be spoken to. Or a box, that is a jail
// around an engine: then until the guest inside the engine has said its first word.
#pragma once

#include <memory>
#include <optional>

#include "boundary/boundary.h"
#include "boundary/jail/furnish.h"
#include "boundary/jail/network_hand.h"
#include "boundary/jail/protections.h"
#include "kernel/cgroup.h"
#include "kernel/seccomp_program.h"

namespace isola::boundary::jail {

inline constexpr uint32_t kIdCount = 65536;

kernel::CgroupLimits group_limits(const Limits& limits);

// Can these be shown to a sandbox, where they want to be?
Result<void> check_shown(const std::vector<ShownFolder>& all);

struct LaunchParts {
  LaunchSpec spec;
  Protections wanted;
  const kernel::CgroupTree& cgroups;
  std::shared_ptr<NetworkHand> hand;
  const kernel::SeccompProgram* filter = nullptr;  // none: a box whose engine brings its own
  std::optional<Outfit> outfit;                    // of a box
};
Result<std::unique_ptr<Launching>> begin_launch(LaunchParts parts);

}  // namespace isola::boundary::jail
