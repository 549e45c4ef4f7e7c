// The memory of a virtual machine: two files, `ram.img` with what is in it, byte for byte and with holes where there is
// nothing, and `state.img` with that of the processors and devices, as QEMU writes it.
//
// The launcher's helper takes the two descriptors that the relay keeps for it (guest/agent/machine_ends.h): the
// monitor, over which it tells QEMU to save itself, and the memory. QEMU writes into a pipe that the helper reads; it
// never gets hold of a file of the image. Then the machine stands still until the manifest is written, and goes on, or
// ends. What fails on the way lets it go on.
#pragma once

#include <sys/types.h>

#include <memory>

#include "boundary/boundary.h"

namespace isola::boundary::microvm {

// `pid`: the relay.
Result<std::unique_ptr<Checkpointing>> begin_checkpoint(pid_t pid, CheckpointSpec spec);

}  // namespace isola::boundary::microvm
