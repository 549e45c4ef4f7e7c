// watch: a folder and, on request, everything below it, by inotify. Folders that appear are watched as well, and what
// was already in them by then is told as created. When events were lost or a folder could not be watched, that is said.
#pragma once

#include "guest/agent/agent.h"

namespace isola::guest {

Result<Mux::Opened> open_watch(Loop& loop, const Watch& watch, bool local_only);

}  // namespace isola::guest
