// What the automaton has to find, found the slow way: for tests and the fuzz target.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "scan/stream.h"

namespace isola::scan {

inline char lower_of(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; }

inline bool order_of_hits(const Hit& a, const Hit& b) {
  return std::tie(a.offset, a.length, a.value, a.form) < std::tie(b.offset, b.length, b.value, b.form);
}

// In the order of order_of_hits. The values are numbered as those that can be searched for are.
inline std::vector<Hit> find_slowly(std::span<const Value> values, std::string_view text) {
  std::vector<Hit> hits;
  uint32_t index = 0;
  for (const Value& value : values) {
    if (!is_searchable(value.bytes)) continue;
    for (const Spelling& spelling : spellings(value.bytes)) {
      const size_t n = spelling.bytes.size();
      for (size_t at = 0; at + n <= text.size(); ++at) {
        size_t same = 0;
        while (same < n && (text[at + same] == spelling.bytes[same] ||
                            (spelling.loose[same] && lower_of(text[at + same]) == spelling.bytes[same])))
          ++same;
        if (same == n) hits.push_back({index, spelling.form, at, static_cast<uint32_t>(n)});
      }
    }
    ++index;
  }
  std::sort(hits.begin(), hits.end(), order_of_hits);
  return hits;
}

inline std::string blotted(std::string text, const std::vector<Hit>& hits) {
  for (const Hit& hit : hits) text.replace(hit.offset, hit.length, hit.length, '*');
  return text;
}

}  // namespace isola::scan
