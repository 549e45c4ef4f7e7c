// The memory of a sandbox as runsc saves it: its sentry writes everything that the guest's processes are into files.
//
// The launcher's helper enters the box and runs the engine's own commands there, as the box's root and with the box's
// capabilities. While the files of the sandbox are kept nothing inside moves: it is paused first, saved as it stands,
// and goes on, or ends, when the manifest is written. What fails on the way lets it go on.
#pragma once

#include <memory>

#include "boundary/boundary.h"
#include "boundary/gvisor/runsc.h"

namespace isola::boundary::gvisor {

// `pid`: the relay. `capabilities`: those of the box.
Result<std::unique_ptr<Checkpointing>> begin_checkpoint(const Runsc& runsc, pid_t pid, uint64_t capabilities,
                                                        CheckpointSpec spec);

// What a failed command of runsc's says, for a person: its first line, without what only its authors can read.
std::string reason_of(const std::string& output);

}  // namespace isola::boundary::gvisor
