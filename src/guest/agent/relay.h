// isola-guest outside of an engine: the first process of a box that a kernel of the guest's own runs in (gVisor).
//
//   isola-guest --relay -- /engine/runsc …
//
// To the host it is what the guest is in a jail: it holds the four ends of the link (guest/link.h), makes new ones when
// it is told to, and lives as long as everything else in the box. The guest itself is inside the engine and has one
// stream in and one out, the engine's standard input and output, that cannot be opened again. The relay carries the
// bytes between the two, and begins a new generation in band: a mark of 32 bytes, drawn here, known to the guest (it is
// the first thing that it reads) and to nobody else. The guest answers with the same mark and a hello; what comes
// before belongs to nobody any more.
//
// When the engine ends, so does the relay, with its status; and with the relay everything in the box.
#pragma once

#include <string>
#include <vector>

namespace isola::guest {

// Does not return.
int run_relay(const std::vector<std::string>& engine);

}  // namespace isola::guest
