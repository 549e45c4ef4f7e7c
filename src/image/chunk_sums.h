// Fast checksums of a file, one per chunk (XXH3): cheap enough for every load of an image, and a broken disk is named
// to the megabyte.
#pragma once

#include <string>

#include "base/error.h"
#include "image/image.h"

namespace isola::image {

// Size and sums of a file; its way to the disk begins.
Result<ImageFile> sum_file(const std::string& path);
// Waits until it is there.
Result<void> sync_file(const std::string& path);
// Code::corrupt: "pages-1.img, chunk 17 (of 1 MiB) …".
Result<void> check_file(const std::string& path, const ImageFile& wanted);

}  // namespace isola::image
