// Telling QEMU to save itself, and believing nothing of what it says: the guest may have taken it over, and whoever
// listens here is root.
//
//   ISOLA_CHECK(save_machine(monitor, memory, files, most));   // it stands still then
//   …
//   ISOLA_CHECK(let_go_on(monitor, false));
//
// How much memory it has is bounded by the sandbox's limit; how much it writes, and how long it takes, by its memory.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/microvm/monitor.h"

namespace isola::boundary::microvm {

struct SavedFiles {
  Fd ram, state, shape;  // empty
};

struct Patience {
  std::chrono::milliseconds silence = std::chrono::seconds(60);  // without a byte
  std::chrono::milliseconds least = std::chrono::seconds(60);    // for the whole, and as much more as its memory needs
};

// `memory`: the machine's, as the relay has it; none if it comes with the state. `most`: how much of it there may be.
Result<void> save_machine(Monitor& monitor, const Fd& memory, const SavedFiles& files, uint64_t most,
                          const Patience& patience = {});

// After that, or after it failed: then what is still under way is given up first.
Result<void> let_go_on(Monitor& monitor, bool failed, std::chrono::milliseconds patience = std::chrono::seconds(60));

// Copies a memfd of the relay's to a file, without what is empty.
Result<void> copy_memory(int memory, int to, uint64_t bytes);

}  // namespace isola::boundary::microvm
