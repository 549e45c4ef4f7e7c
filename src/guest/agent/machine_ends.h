// The descriptors between a relay (relay.h) and the virtual machine that it starts: the relay keeps one end of each,
// the machine's program finds the others under fixed numbers.
//
//   number  the program's                                the relay's
//   3       the serial line that the guest speaks over   to_line
//   4       the sandbox's network, a TAP                 8, from the launcher
//   5       its monitor (QMP)                            9: whoever saves the machine takes it from there (pidfd_getfd)
//   6       the guest's memory, a memfd                  10: for the same one
//   7       its console                                  console
//   8       what it is restored from                     –
//
// The launcher's helper has no other way to the machine than these two numbers: nothing listens anywhere.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::guest {

inline constexpr int kFdMonitor = 9, kFdMemory = 10;  // in the relay

struct MachineOptions {
  bool on = false;
  uint64_t memory = 0;  // of the guest; 0: the program maps an image's by itself
  std::string state;    // a file to restore from; empty: the machine starts
};

struct MachineEnds {
  Fd line;                                // both directions
  Fd console;                             // what the kernel has to say
  std::vector<Fd> given;                  // the program's ends, until it is started
  std::vector<std::pair<int, int>> take;  // which of its numbers each is to have: (ours, its)

  static Result<MachineEnds> make(const MachineOptions& options, int network);
};

// What is said to the monitor before the program even runs: it restores, and goes on as the machine was.
std::string words_of_restore();

}  // namespace isola::guest
