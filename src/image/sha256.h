// SHA-256 as 64 hex digits.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::image {

Result<std::string> sha256(std::string_view bytes);
// Of a whole file, read once; `tick` hears how many bytes are done, now and then.
Result<std::string> sha256_file(const std::string& path, const std::function<void(uint64_t)>& tick = {});

}  // namespace isola::image
