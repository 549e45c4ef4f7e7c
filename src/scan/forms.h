// How a value may look in a stream: as it is, or as one of the usual encodings leaves it.
//
//   std::vector<Spelling> all = spellings("tok\"en/1");    // raw, base64 …, hex, tok%22en%2F1, tok\"en\/1,
//   tok&quot;en/1 …
//
// Of base64 only what does not depend on the neighbours is searched: a value that begins at the first, second or third
// byte of a group of three leaves three different texts, whose first and last characters also hold bits of what stands
// before and behind.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace isola::scan {

enum class Form : uint8_t { raw, base64, base64url, hex, url, json, html };
std::string_view to_string(Form form);

struct Spelling {
  Form form = Form::raw;
  std::string bytes;
  // As long as `bytes`: where it is not 0, upper and lower case are the same (the digits of %2f, of hex and \u002f).
  std::string loose;
  bool operator==(const Spelling&) const = default;
};

// Every spelling once; a text that several encodings give is of the first form in the order of the enum.
std::vector<Spelling> spellings(std::string_view value);

}  // namespace isola::scan
