// Text as libsodium and OpenSSL want to see it.
#pragma once

#include <string_view>

namespace isola::vault {

inline const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace isola::vault
