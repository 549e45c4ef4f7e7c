// What tells whether a client's copy is still what is here (RFC 9110, 13): a weak tag and a time.
//
//   Validators now{.tag = "W/\"5-18\"", .modified = 1700000000};
//   if (now.match(ex.header("if-none-match"), ex.header("if-modified-since"))) return ex.reply(304);
//   bool part = now.range_meant(ex.header("if-range"));  // false: the whole
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace isola::http {

// "Sun, 06 Nov 1994 08:49:37 GMT"; parsed in this form alone, which everybody has to write.
std::string to_date(int64_t seconds);
std::optional<int64_t> parse_date(std::string_view text);

struct Validators {
  std::string tag;
  int64_t modified = 0;  // seconds since 1970

  // The client's copy is good. The tag decides where one is given.
  bool match(std::string_view if_none_match, std::string_view if_modified_since) const;
  // A part may be sent: nothing was asked, or this time. A weak tag never says that bytes are the same.
  bool range_meant(std::string_view if_range) const;
};

}  // namespace isola::http
