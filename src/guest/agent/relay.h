// isola-guest outside of an engine: the first process of a box that a kernel of the guest's own runs in (gVisor,
// user-mode Linux, a virtual machine).
//
//   isola-guest --relay [--name ID | --rename ID] -- /engine/runsc …
//   isola-guest --relay-packets CPU -- /engine/linux …
//   isola-guest --relay-machine MEMORY STATE (--name ID | --rename ID) -- /engine/qemu …   (MEMORY in bytes, or 0;
//   STATE
//                                                                         a file to restore from, or -)
//
// To the host it is what the guest is in a jail: it holds the four ends of the link (guest/link.h), makes new ones when
// it is told to, and lives as long as everything else in the box. The guest itself is inside the engine and has one
// stream in and one out, the engine's standard input and output, that cannot be opened again. (An engine that is a
// kernel has a device instead, which speaks packets: guest/packet_line.h. It finds the socket of that device as its
// descriptor 3 and the sandbox's network as 4, and runs on one processor with everything that it starts: each system
// call of the guest's goes from one of its processes to another and back.) The relay carries the bytes between the two,
// and begins a new generation in band: a mark of 32 bytes, drawn here, known to the guest (it is the first thing that
// it reads) and to nobody else. The guest answers with the same mark and a hello; what comes before belongs to nobody
// any more.
//
// A guest that was started without a name is given one (--name), and so is one that the engine restores from a
// checkpoint, which knows the mark and the name of whoever it was (--rename).
//
// A virtual machine has a serial line, which loses nothing (machine_ends.h). Its guest is told the time with its name,
// and given randomness: when it says that it is there, or when the machine says that it goes on.
//
// When the engine ends, so does the relay, with its status; and with the relay everything in the box.
#pragma once

#include <string>
#include <vector>

#include "guest/agent/machine_ends.h"

namespace isola::guest {

struct RelayOptions {
  std::vector<std::string> engine;  // program and arguments
  std::string name;                 // empty: the guest has it
  bool restored = false;            // it waits for a new name, and for nothing else
  bool packets = false;
  int processor = -1;  // with packets: the one to run on; -1: any
  MachineOptions machine;
};
// Descriptors of a relay with packets besides those of the link.
inline constexpr int kFdNetwork = 8;                       // in the relay
inline constexpr int kEngineLine = 3, kEngineNetwork = 4;  // in the engine

// Does not return.
int run_relay(const RelayOptions& options);

}  // namespace isola::guest
