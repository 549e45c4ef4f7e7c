// The next word of a text from /proc, which is cut off it; "" at the end. A launch reads a hundred of them, and a
// stream for each line costs far more than the line.
#pragma once

#include <algorithm>
#include <string_view>

namespace isola::boundary::jail {

inline std::string_view next_word(std::string_view& rest, char between = ' ') {
  rest.remove_prefix(std::min(rest.find_first_not_of(between), rest.size()));
  std::string_view word = rest.substr(0, rest.find(between));
  rest.remove_prefix(word.size());
  return word;
}

}  // namespace isola::boundary::jail
