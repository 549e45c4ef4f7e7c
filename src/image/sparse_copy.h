// Copies a file that is mostly holes: shares the blocks where the filesystem can (reflink), else copies only data.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::image {

// `to` must not exist; on failure it does not exist afterwards either.
Result<void> sparse_copy(const std::string& from, const std::string& to);

// Tries whether the filesystem of this folder shares blocks between files.
bool can_reflink(const std::string& folder);

}  // namespace isola::image
