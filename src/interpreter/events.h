// What the program inside says, as the host takes it. All of it comes from inside the sandbox, where root may have put
// another program in its place: a line is bounded before it is parsed, and of an event only the fields that it can have
// go on, each of its own kind.
//
//   ISOLA_TRY(json line, parse_line(text));                   // corrupt: no object, too deep, too many values
//   if (text_of(line, "type") == "failure") return std::unexpected(failure_of(line));
//   auto event = event_of(std::move(line));                   // nothing: no event that anybody knows
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace isola::interpreter {

Result<nlohmann::json> parse_line(std::string_view text);
std::optional<nlohmann::json> event_of(nlohmann::json line);

// What could not be done inside. Its words are the sandbox's, and say so; its code is one of those that isola-kernels
// has a reason for (invalid, not_found, unsupported, exhausted), else internal.
Error failure_of(const nlohmann::json& line);

}  // namespace isola::interpreter
