// Whether one tree is what another one is: whoever is about to remove the first had better know.
//
//   ISOLA_CHECK(compare_trees(layer + "/upper", trial + "/upper"));
//
// Compared are names, kinds, modes, owners, times of change, sizes, contents, links of both kinds and all attributes
// but `btrfs.*`, which belong to a filesystem and not to a file. Sockets may be missing: without who listened at them
// they are nothing. Nobody may change either tree meanwhile.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::image {

// Code::corrupt names the first difference. Paths of more than PATH_MAX below either folder are an error.
Result<void> compare_trees(const std::string& wanted, const std::string& found);

}  // namespace isola::image
