#include "gate/first_line.h"

#include <algorithm>

#include "gate/http1_head.h"

namespace isola::gate {

FirstLine::Likeness FirstLine::feed(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size() && likeness_ == Likeness::unknown; ++i) likeness_ = next(bytes[i]);
  return likeness_;
}

FirstLine::Likeness FirstLine::next(char c) {
  constexpr std::string_view kMethods[] = {"GET", "POST", "PUT", "HEAD", "DELETE", "PATCH", "OPTIONS", "CONNECT"};
  constexpr std::string_view kVersion = "HTTP/";
  if (++size_ > kMaxHead) return Likeness::yes;  // and refused, as a head that is too large
  if (part_ == Part::empty_lines) {
    if (c == '\r' || c == '\n') return Likeness::unknown;
    part_ = Part::method;
  }
  if (c == '\n') return Likeness::no;
  if (part_ == Part::method) {
    if (c == ' ' || c == '\t') {
      part_ = Part::rest;
      // Also without a version.
      const bool known = std::ranges::find(kMethods, std::string_view(method_, method_size_)) != std::end(kMethods);
      return known ? Likeness::yes : Likeness::unknown;
    }
    if (!is_field_name({&c, 1})) return Likeness::no;
    if (method_size_ < sizeof method_) method_[method_size_++] = c;  // a longer one is none of those
    return Likeness::unknown;
  }
  const char upper = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  // Where it does not go on, only an H can begin it anew ("HTHTTP/").
  if (upper == kVersion[version_size_])
    ++version_size_;
  else
    version_size_ = upper == 'H' ? 1 : 0;
  return version_size_ == kVersion.size() ? Likeness::yes : Likeness::unknown;
}

}  // namespace isola::gate
