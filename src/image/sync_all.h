// Puts several files or folders on disk, and waits less than one after the other: what is asked for at the same time is
// one journal commit and one emptying of the disk's cache for all.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace isola::image {

// Threads that have ended when it returns. The first error of any.
Result<void> sync_all(const std::vector<std::string>& paths);

}  // namespace isola::image
