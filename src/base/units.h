// Sizes and times as people write them: 64M, 2G (powers of 1024; a bare number is bytes) and 500ms, 5s, 10m, 2h, 1d
// (a bare number is seconds).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola {

Result<uint64_t> parse_size(std::string_view text);
Result<std::chrono::milliseconds> parse_duration(std::string_view text);
std::string format_size(uint64_t bytes);                         // 1.5 GiB
std::string format_duration(std::chrono::nanoseconds duration);  // 1.63 ms

}  // namespace isola
