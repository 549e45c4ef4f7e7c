// Small questions about HTTP's text, asked by several files of this room.
#pragma once

#include <string_view>

namespace isola::http {

constexpr char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

constexpr bool equal_nocase(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++) {
    if (lower(a[i]) != lower(b[i])) return false;
  }
  return true;
}

constexpr std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

constexpr bool is_token_char(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
constexpr bool is_token(std::string_view s) {
  if (s.empty()) return false;
  for (char c : s) {
    if (!is_token_char(c)) return false;
  }
  return true;
}

// Calls f with each trimmed, non-empty item of a comma-separated list, until f returns true; says whether it did.
template <typename F>
bool any_item(std::string_view list, F f) {
  while (!list.empty()) {
    size_t comma = list.find(',');
    std::string_view item = trim(list.substr(0, comma));
    list = comma == list.npos ? std::string_view() : list.substr(comma + 1);
    if (!item.empty() && f(item)) return true;
  }
  return false;
}
inline bool has_item(std::string_view list, std::string_view wanted) {
  return any_item(list, [&](std::string_view item) { return equal_nocase(item, wanted); });
}

}  // namespace isola::http
