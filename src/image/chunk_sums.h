// Fast checksums of a file, one per chunk (XXH3): cheap enough for every load of an image, and a broken disk is named
// to the megabyte.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "image/image.h"

namespace isola::image {

// By the name of a file: the sums of its first whole chunks.
using KnownSums = std::map<std::string, std::vector<uint64_t>>;

// Size and sums of a file; its way to the disk begins. `known`: the sums of its first chunks, if somebody has them.
Result<ImageFile> sum_file(const std::string& path, const std::vector<uint64_t>& known = {});
// Of that many bytes from there on; at most kChunk.
Result<uint64_t> sum_chunk(int file, uint64_t from, uint64_t bytes);
// What is in memory says nothing of the disk: whoever reads it next reads what lies there.
Result<void> forget_cached(const std::string& path);
// Waits until it is there.
Result<void> sync_file(const std::string& path);
// Code::corrupt: "pages-1.img, chunk 17 (of 1 MiB) …".
Result<void> check_file(const std::string& path, const ImageFile& wanted);

}  // namespace isola::image
