// HMAC-SHA-256, by libcrypto.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace isola {

Result<std::string> hmac_sha256(std::string_view key, std::string_view bytes);  // 32 bytes, not hex

std::string to_hex(std::string_view bytes);
Result<std::string> from_hex(std::string_view digits);  // lower case only

// Overwrites a secret before it goes.
void wipe(std::string& secret);

}  // namespace isola
