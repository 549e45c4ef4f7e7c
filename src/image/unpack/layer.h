// A layer of an OCI image, applied to a tree: files of an archive, and its whiteouts, which take away what lower layers
// put there.
//
//   // in a process of its own, with the tree as its root (main.cc):
//   ISOLA_TRY(Amount done, apply_layer(STDIN_FILENO, {.bytes = 4_GiB, .entries = 1'000'000}));
//
// Paths of the archive are taken from "/", and links in them lead where they lead: so "/" must be the tree.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace isola::image {

struct Amount {
  uint64_t bytes = 0, entries = 0;
};

inline constexpr int64_t kLargestId = 65535;  // of users and groups in a sandbox

// A tar, plain or packed with gzip or zstd. exhausted: more than `most`.
Result<Amount> apply_layer(int archive, const Amount& most);

}  // namespace isola::image
