// The sandbox's own disk: a file with holes, in its layer, so that the layer's limit holds for it as well.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace isola::boundary::uml {

inline constexpr uint64_t kLeastDisk = 20 << 20;

// How large the disk of a sandbox with that limit is: the store needs some of it for its own bookkeeping.
uint64_t disk_size(uint64_t limit);

// Copies the empty disk to `path`, which must not exist, without its holes, and makes it as large as that.
Result<void> make_disk(const std::string& empty, const std::string& path, uint64_t size);

}  // namespace isola::boundary::uml
