// Log lines for operators, one per event, on standard error: `time level room message`, then ` name=value` for each
// field, or all of it as one JSON object. Never secrets, never bytes that a sandbox chose without passing them through
// `quoted`.
//
//   log::info("server", "ready on {}", url);
//   log::write(log::Level::error, "api", "the store is full", {{"request_id", ex.request_id()}});
#pragma once

#include <fmt/format.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace isola::log {

enum class Level { debug, info, warn, error };

// What programs that read logs look for beside the message. A number is one in JSON, too.
struct Field {
  std::string_view name, value;
  bool number = false;
};
using Fields = std::initializer_list<Field>;

void set_level(Level level);
void write(Level level, std::string_view room, std::string_view message, Fields fields = {});
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
