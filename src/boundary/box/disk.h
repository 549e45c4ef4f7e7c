// The sandbox's own disk: a file with holes, in its layer, so that the layer's limit holds for it as well.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/error.h"

namespace isola::boundary::box {

inline constexpr uint64_t kLeastDisk = 20 << 20;

// How large the disk of a sandbox with that limit is: the store needs some of it for its own bookkeeping.
uint64_t disk_size(uint64_t limit);

// Copies the disk `from` to `path`, which must not exist, without its holes, and makes it as large as that.
Result<void> make_disk(const std::string& from, const std::string& path, uint64_t size);

// The same for a disk that may be large: where the filesystem can let the two share what neither changes it is done at
// once; else `path` is there, empty, and `later` does the rest, in a process of its own.
Result<void> begin_disk(const std::string& from, const std::string& path, uint64_t size,
                        std::function<Result<void>()>& later);

}  // namespace isola::boundary::box
