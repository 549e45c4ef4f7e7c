// read and write: files as streams of any size.
//
// Only regular files: opening a FIFO or a device could block pid 1 or do something by being opened, so everything is
// opened without blocking and then looked at. Rights are checked when the file is opened, as the acting user; after
// that the open file is the right to go on.
#pragma once

#include "guest/agent/agent.h"

namespace isola::guest {

Result<Mux::Opened> open_read(const Read& args);
Result<Mux::Opened> open_write(const Write& args);

}  // namespace isola::guest
