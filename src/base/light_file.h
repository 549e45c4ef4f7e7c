// Files that must survive our processes, and need not survive the machine: what only means something while sandboxes
// live. A write that waits for the disk takes as long as the disk is busy.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola {

// As replace_file, but nothing waits for the disk: after a power loss there is the old one, the new one, or none.
Result<void> replace_file_lightly(const std::string& path, std::string_view text, int mode = 0644);

}  // namespace isola
