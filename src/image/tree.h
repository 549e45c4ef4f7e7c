// Folder trees that somebody else filled.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace isola::image {

// Removes a tree, however deep or oddly named, without following a link; quiet when it is not there. It never holds
// more than two descriptors, and stops at other filesystems. Not for trees that somebody still changes.
Result<void> remove_tree(const std::string& path);
// Names in a folder, without "." and "..", sorted. A folder that is not there has none.
Result<std::vector<std::string>> list_dir(const std::string& path);

}  // namespace isola::image
