// Bytes inside of JSON and headers. Encoding is native::base64; this is the way back.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace isola::e2b {

// Both alphabets, with or without padding: clients mix them. Nothing when a character is none of them.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace isola::e2b
