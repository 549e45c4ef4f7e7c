// Log lines for operators, one per event, on standard error: `time level room message`. Never secrets, never bytes that
// a sandbox chose without passing them through `quoted`.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace isola::log {

enum class Level { debug, info, warn, error };

void set_level(Level level);
void write(Level level, std::string_view room, std::string_view message);
std::string quoted(std::string_view untrusted);  // "…" with control characters escaped, at most 200 bytes

template <typename... A>
void info(std::string_view room, fmt::format_string<A...> f, A&&... a) {
  write(Level::info, room, fmt::format(f, std::forward<A>(a)...));
}
template <typename... A>
void warn(std::string_view room, fmt::format_string<A...> f, A&&... a) {
  write(Level::warn, room, fmt::format(f, std::forward<A>(a)...));
}
template <typename... A>
void error(std::string_view room, fmt::format_string<A...> f, A&&... a) {
  write(Level::error, room, fmt::format(f, std::forward<A>(a)...));
}

}  // namespace isola::log
