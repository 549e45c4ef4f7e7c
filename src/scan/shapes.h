// Tokens that can be told by their looks: a prefix that a provider chose, a length, an alphabet, and enough chance in
// it that it is no example.
//
//   for (const ShapeHit& hit : find_shapes(text))
//     say(kShapes[hit.shape].what, hit.offset);        // never the token itself
//
// A line with the words `isola-scan: allow` is passed over.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace isola::scan {

enum class Alphabet : uint8_t { digits, hex, upper, alnum, word, base64, dotted };

struct Shape {
  std::string_view what;    // "GitHub personal access token"
  std::string_view prefix;  // what it begins with, or what it must contain to be looked at
  Alphabet alphabet;        // of what follows
  uint16_t least, most;     // how many of them
  float bits;               // chance in each, at least (Shannon); 0: the prefix says it all
};
std::span<const Shape> shapes();

struct ShapeHit {
  size_t shape = 0;  // of shapes()
  size_t offset = 0, length = 0;
};
inline constexpr size_t kLongestShape = 4096;

// In the order in which they stand in the text.
std::vector<ShapeHit> find_shapes(std::string_view text);

}  // namespace isola::scan
