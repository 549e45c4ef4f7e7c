// isola-guest outside of an engine: the first process of a box that a kernel of the guest's own runs in (gVisor,
// user-mode Linux).
//
//   isola-guest --relay [--name ID | --rename ID] -- /engine/runsc …
//   isola-guest --relay-packets CPU -- /engine/linux …
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
// When the engine ends, so does the relay, with its status; and with the relay everything in the box.
#pragma once

#include <string>
#include <vector>

namespace isola::guest {

struct RelayOptions {
  std::vector<std::string> engine;  // program and arguments
  std::string name;                 // empty: the guest has it
  bool restored = false;            // it waits for a new name, and for nothing else
  bool packets = false;
  int processor = -1;  // with packets: the one to run on; -1: any
};
// Descriptors of a relay with packets besides those of the link.
inline constexpr int kFdNetwork = 8;                       // in the relay
inline constexpr int kEngineLine = 3, kEngineNetwork = 4;  // in the engine

// Does not return.
int run_relay(const RelayOptions& options);

}  // namespace isola::guest
