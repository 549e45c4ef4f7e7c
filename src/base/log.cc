#include "base/log.h"

#include <time.h>
#include <unistd.h>

namespace isola::log {

namespace {
Level threshold = Level::info;
constexpr std::string_view kNames[] = {"debug", "info", "warn", "error"};
}  // namespace

void set_level(Level level) { threshold = level; }

void write(Level level, std::string_view room, std::string_view message) {
  if (level < threshold) return;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  tm utc{};
  ::gmtime_r(&now.tv_sec, &utc);
  auto line = fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z {} {}: {}\n", utc.tm_year + 1900, utc.tm_mon + 1,
                          utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1000000,
                          kNames[static_cast<int>(level)], room, message);
  // One write per line keeps lines whole; a log that cannot be written is not worth failing for.
  [[maybe_unused]] ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
}

std::string quoted(std::string_view untrusted) {
  std::string out = "\"";
  for (unsigned char c : untrusted.substr(0, 200)) {
    if (c < 0x20 || c >= 0x7f || c == '"' || c == '\\')
      out += fmt::format("\\x{:02x}", c);
    else
      out.push_back(static_cast<char>(c));
  }
  out += untrusted.size() > 200 ? "…\"" : "\"";
  return out;
}

}  // namespace isola::log
