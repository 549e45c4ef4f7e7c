// What may stand in a field of an HTTP head: no CR, no LF, no NUL, nothing that could be taken for one. With a line's
// end in it one header would become two. Whoever asks need not know any HTTP beyond that.
//
//   if (!is_field_value(value)) return fail(Code::invalid, "…");
#pragma once

#include <algorithm>
#include <string_view>

namespace isola {

inline bool is_field_value(std::string_view value) {
  return std::ranges::all_of(value, [](char one) {
    auto c = static_cast<unsigned char>(one);
    return c == '\t' || (c >= ' ' && c != 0x7f);
  });
}

}  // namespace isola
