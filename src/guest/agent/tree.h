// list and remove of whole trees, in slices of a few hundred entries, so that a folder with a million names does not
// keep the loop. Both go down by openat with O_NOFOLLOW: a folder that turns into a link meanwhile is not followed.
#pragma once

#include "guest/agent/agent.h"

namespace isola::guest {

Result<Mux::Opened> open_list(const List& args);
Result<Mux::Opened> open_remove_tree(const Remove& args);

}  // namespace isola::guest
