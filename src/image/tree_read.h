// Reads every file of a tree, for the disk's sake: what a filesystem with checksums finds damaged it says only when
// somebody reads it.
//
//   ISOLA_CHECK(read_tree(layer + "/upper"));
#pragma once

#include <string>

#include "base/error.h"

namespace isola::image {

// Code::corrupt names the first file or folder that the disk has lost; unavailable and unsupported: it was not read to
// its end. Links are not followed, and nothing but files is opened. What lies deeper than PATH_MAX is passed over, and
// what is removed meanwhile.
Result<void> read_tree(const std::string& path);

}  // namespace isola::image
