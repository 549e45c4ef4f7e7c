// What a browser's Cookie header says.
#pragma once

#include <string_view>
#include <vector>

namespace isola::dialect {

// All values of that name, in their order: a page of a neighbouring host may have put one of its own before ours.
//
//   cookies_of("a=1; b=2; a=3", "a")  → {"1", "3"}
inline std::vector<std::string_view> cookies_of(std::string_view header, std::string_view name) {
  std::vector<std::string_view> values;
  while (!header.empty()) {
    auto end = header.find(';');
    auto part = header.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.starts_with(name) && part.size() > name.size() && part[name.size()] == '=')
      values.push_back(part.substr(name.size() + 1));
    if (end == std::string_view::npos) break;
    header.remove_prefix(end + 1);
  }
  return values;
}

// The names under which the address of a port leaves its right with a browser.
inline constexpr std::string_view kTokenCookie = "isola_token", kGrantCookie = "isola_grant";

}  // namespace isola::dialect
