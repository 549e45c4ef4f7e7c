// Methods and paths of requests as rules compare them: one spelling per path, and nothing in it that two programs could
// read differently.
//
//   normal_path("/re%70os/x")        → "/repos/x"
//   normal_path("/repos/%2e%2e/x")   → an error: so are dot segments, //, \, %2f, ..; and what is no UTF-8
//   is_under("/users", "/user")      → false: a prefix ends where a segment ends
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::gate {

// Without the query.
Result<std::string> normal_path(std::string_view path);

bool is_under(std::string_view path, std::string_view prefix);

// Upper-case letters, '-' and '_': a method is compared as it is.
bool is_method(std::string_view text);

// "name=value&…" without the parameter of this name, however it is spelled; `found`: it was there.
std::string without_parameter(std::string_view query, std::string_view name, bool* found = nullptr);
// What %XX stands for; anything else stays as it is.
std::string percent_decoded(std::string_view text);
// Everything but unreserved characters as %XX.
std::string percent_encoded(std::string_view text, bool keep_slashes = false);

}  // namespace isola::gate
