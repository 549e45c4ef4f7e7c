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

// What the disk in a layer was when its sandbox was paused, beside it, while the sandbox goes on: its memory belongs to
// that disk and to no later one, so a restore that fails has to find it again. `image` is what it belongs to; what
// others have left is removed. False: this filesystem cannot share data between files, and nothing is kept.
//
//   layer/upper/disk          what the machine writes to
//   layer/disk-of-m0123…      as it was
Result<bool> keep_disk(const std::string& layer, const std::string& image);
// The disk is that one again, if there is one; whoever still writes to the other does so for nothing.
Result<void> bring_disk_back(const std::string& layer, const std::string& image);
Result<void> forget_kept_disk(const std::string& layer, const std::string& image);

}  // namespace isola::boundary::box
