// dial: a TCP connection to a port inside the sandbox, its bytes carried over a channel both ways, each direction with
// its own end. How previews reach a service, for every boundary.
#pragma once

#include "guest/agent/agent.h"
#include "guest/dial.h"

namespace isola::guest {

Result<Mux::Opened> open_dial(Loop& loop, const DialPath& dial);

}  // namespace isola::guest
