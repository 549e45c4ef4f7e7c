// How much a cell may say, as both sides know it: isola-kernels keeps to the smaller ones, and the host, which does not
// believe that, stops a cell that is over the larger ones.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/json_bound.h"

namespace isola::interpreter {

// max_output of a cell: text, forms and metadata of results, as they are written in JSON.
inline constexpr size_t kUsualOutput = 10 << 20, kMostOutput = 128 << 20;

// Beyond it there is room for what must be said all the same: errors, and that something was left out.
inline constexpr size_t kBeyond = 1 << 20;
inline constexpr size_t kBeyondAtHost = 4 << 20;

// One message of a kernel, and one line of isola-kernels. The values of a message are as many in the line.
inline constexpr JsonBound kMessageBound{.depth = 64, .values = 600'000};
inline constexpr JsonBound kLineBound{.depth = 64, .values = 700'000};

// Text is said in pieces of this size: a byte of it is up to six in JSON.
inline constexpr size_t kPiece = 1 << 20;

inline constexpr size_t longest_line(size_t max_output) { return std::max(max_output, 6 * kPiece) + kBeyondAtHost; }

}  // namespace isola::interpreter
