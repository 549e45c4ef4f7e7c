// Query parameters with a meaning. What is not understood is refused with the parameter's name, never guessed.
//
//   ISOLA_CO_TRY(uint64_t depth, query_number(ex, "depth", 1));
//   ISOLA_CO_TRY(bool follow, query_flag(ex, "follow", true));
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace isola::native {

// invalid: not a whole number, or not between `least` and `most`.
Result<uint64_t> whole_number(std::string_view name, std::string_view text, uint64_t least = 0,
                              uint64_t most = UINT64_MAX);
Result<uint64_t> query_number(const http::Exchange& ex, std::string_view name, uint64_t otherwise, uint64_t least = 0,
                              uint64_t most = UINT64_MAX);
// `from`: where in a command's output to begin; a sequence number, or now.
Result<uint64_t> query_sequence(const http::Exchange& ex);
// invalid: one that is none of these, by its name.
Result<void> only_queries(const http::Exchange& ex, std::initializer_list<std::string_view> known);
// A date, or a time (UTC) as 2026-01-31T12:00:00, with a fraction of a second and a Z if need be; in milliseconds.
std::optional<int64_t> parse_moment(const std::string& text);
// true or false.
Result<bool> query_flag(const http::Exchange& ex, std::string_view name, bool otherwise = false);

}  // namespace isola::native
