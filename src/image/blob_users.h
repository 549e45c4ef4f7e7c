// Which data folders need a blob of the machine-wide cache. No template may name it any more: a sandbox that was paused
// on it, or a snapshot, has it below its own files all the same.
//
//   note_user("/var/cache/isola/blobs", digest, "/var/lib/isola");   // before it is used there
//   if (!is_used("/var/cache/isola/blobs", digest)) …                // it can go
//
// BLOBS/users/<digest>/<hash of the folder's path> holds that path. What is really needed stands in the data folder
// (manifests of its images, the journal of its sandboxes) and is looked up there, so that nobody has to take a note
// back.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::image {

Result<void> note_user(const std::string& blobs, const std::string& digest, const std::string& data);
// A data folder that cannot be looked into needs all that it ever noted; one that is gone needs nothing.
Result<bool> is_used(const std::string& blobs, const std::string& digest);

}  // namespace isola::image
