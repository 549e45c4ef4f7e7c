#include "gate/request_path.h"

#include <algorithm>

namespace isola::gate {

namespace {

constexpr char kHex[] = "0123456789ABCDEF";

bool is_unreserved(unsigned char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The byte behind a '%', or -1.
int escaped(std::string_view text, size_t at) {
  if (at + 2 >= text.size()) return -1;
  int high = digit(text[at + 1]), low = digit(text[at + 2]);
  return high < 0 || low < 0 ? -1 : high << 4 | low;
}

// "." and "..", also where some servers cut a segment at its ';'.
bool is_dots(std::string_view segment) {
  segment = segment.substr(0, segment.find(';'));
  return segment == "." || segment == "..";
}

// Overlong forms, halves of a pair, and bytes that belong to nothing: some servers read a dot or a slash there.
bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    auto at = [&](size_t more) { return i + more < text.size() ? static_cast<unsigned char>(text[i + more]) : 0u; };
    const unsigned first = at(0);
    const size_t size = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
    if (size == 0) return false;
    // The second byte has narrower bounds behind some of the first ones.
    const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (size > 1 && (at(1) < low || at(1) > high)) return false;
    for (size_t more = 2; more < size; ++more)
      if (at(more) < 0x80 || at(more) > 0xbf) return false;
    i += size;
  }
  return true;
}

}  // namespace

Result<std::string> normal_path(std::string_view path) {
  if (!path.starts_with('/')) return fail(Code::invalid, "a path begins with /");
  std::string out;
  out.reserve(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    auto c = static_cast<unsigned char>(path[i]);
    if (c <= ' ' || c >= 0x7f || c == '\\' || c == '?' || c == '#')
      return fail(Code::invalid, "a path has a character that none may have");
    if (c != '%') {
      out += static_cast<char>(c);
      continue;
    }
    int byte = escaped(path, i);
    if (byte < 0) return fail(Code::invalid, "a % without two digits");
    if (byte < ' ' || byte == 0x7f || byte == '/' || byte == '\\')
      return fail(Code::invalid, "an escaped character that servers read differently");
    if (is_unreserved(static_cast<unsigned char>(byte))) {
      out += static_cast<char>(byte);
    } else {
      out += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
    i += 2;
  }
  if (!is_utf8(percent_decoded(path))) return fail(Code::invalid, "escaped characters that are no UTF-8");
  for (size_t at = 1; at <= out.size();) {
    size_t end = std::min(out.find('/', at), out.size());
    auto segment = std::string_view(out).substr(at, end - at);
    if (segment.empty() && end < out.size()) return fail(Code::invalid, "an empty segment");
    if (is_dots(segment)) return fail(Code::invalid, "a segment of dots");
    at = end + 1;
  }
  return out;
}

bool is_under(std::string_view path, std::string_view prefix) {
  if (!path.starts_with(prefix)) return false;
  return prefix.empty() || prefix.ends_with('/') || path.size() == prefix.size() || path[prefix.size()] == '/';
}

bool is_method(std::string_view text) {
  return !text.empty() && text.size() <= 32 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= 'A' && c <= 'Z') || c == '-' || c == '_'; });
}

std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    int byte = text[i] == '%' ? escaped(text, i) : -1;
    out += byte < 0 ? text[i] : static_cast<char>(byte);
    if (byte >= 0) i += 2;
  }
  return out;
}

std::string percent_encoded(std::string_view text, bool keep_slashes) {
  std::string out;
  for (char one : text) {
    auto c = static_cast<unsigned char>(one);
    if (is_unreserved(c) || (keep_slashes && c == '/'))
      out += one;
    else
      out += {'%', kHex[c >> 4], kHex[c & 15]};
  }
  return out;
}

std::string without_parameter(std::string_view query, std::string_view name, bool* found) {
  std::string out;
  for (size_t at = 0; at <= query.size();) {
    // Some servers part parameters at ';' as well.
    size_t end = std::min(query.find_first_of("&;", at), query.size());
    auto one = query.substr(at, end - at);
    auto key = percent_decoded(one.substr(0, one.find('=')));
    if (key == name) {
      if (found) *found = true;
    } else {
      if (at > 0 && !out.empty()) out += query[at - 1];
      out += one;
    }
    at = end + 1;
  }
  return out;
}

}  // namespace isola::gate
