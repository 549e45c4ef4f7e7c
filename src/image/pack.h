// A root folder as one erofs blob. Equal trees give equal blobs: owners, modes, links, xattrs and times are taken from
// the tree, times later than `not_after` are set to it, and nothing of the moment goes in.
//
// Uncompressed on purpose: packing takes a tenth of the time of lz4hc, pages are mapped straight from the page cache
// without decompression (an interpreter's start is part of what a user waits for), and a blob serves as a VM's disk.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "image/build_place.h"

namespace isola::image {

// `most`: bytes of the blob, for a tree that a stranger made; it has half an hour, too. 0: as large as it gets.
Result<void> pack_tree(const std::string& tree, const std::string& blob, int64_t not_after, const std::string& log,
                       const Reporter& report, uint64_t most = 0);
// The latest modification time in the tree that is before `build_start`: what the packages brought, not what
// configuring them wrote. build_start itself when there is none.
Result<int64_t> newest_before(const std::string& tree, int64_t build_start);

}  // namespace isola::image
