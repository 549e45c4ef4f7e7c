// Bytes inside of JSON and headers.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace isola::dialect {

std::string base64(std::string_view bytes);
// Both alphabets, with or without padding: clients mix them. Nothing when a character is none of them.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace isola::dialect
