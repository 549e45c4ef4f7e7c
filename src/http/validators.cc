#include "http/validators.h"

#include <ctime>

#include "http/text.h"

namespace isola::http {

namespace {

constexpr const char* kForm = "%a, %d %b %Y %H:%M:%S GMT";

std::string_view opaque(std::string_view tag) {
  if (tag.starts_with("W/")) tag.remove_prefix(2);
  return tag;
}

}  // namespace

std::string to_date(int64_t seconds) {
  std::time_t time = seconds;
  std::tm parts{};
  char text[64];
  if (!::gmtime_r(&time, &parts)) return {};
  return {text, std::strftime(text, sizeof text, kForm, &parts)};
}

std::optional<int64_t> parse_date(std::string_view text) {
  std::string copy(trim(text));
  std::tm parts{};
  const char* end = ::strptime(copy.c_str(), kForm, &parts);
  if (!end || *end || copy.size() != 29) return std::nullopt;
  return ::timegm(&parts);
}

bool Validators::match(std::string_view if_none_match, std::string_view if_modified_since) const {
  if (!if_none_match.empty()) {
    if (trim(if_none_match) == "*") return true;
    while (!if_none_match.empty()) {  // ours holds no comma
      auto comma = if_none_match.find(',');
      if (opaque(trim(if_none_match.substr(0, comma))) == opaque(tag)) return true;
      if_none_match = comma == if_none_match.npos ? std::string_view() : if_none_match.substr(comma + 1);
    }
    return false;
  }
  auto since = parse_date(if_modified_since);
  return since && modified <= *since;
}

bool Validators::range_meant(std::string_view if_range) const {
  if (if_range.empty()) return true;
  auto time = parse_date(if_range);
  return time && *time == modified;
}

}  // namespace isola::http
