#include "base/units.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

namespace isola {

namespace {

struct Number {
  double value;
  std::string_view unit;
};

Result<Number> split(std::string_view text, std::string_view what) {
  double value = 0;
  auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || !std::isfinite(value) || value < 0)
    return fail(Code::invalid, fmt::format("'{}' is not a {}", text, what));
  return Number{value, text.substr(static_cast<size_t>(end - text.data()))};
}

}  // namespace

Result<uint64_t> parse_size(std::string_view text) {
  ISOLA_TRY(Number n, split(text, "size (write it as 64M or 2G)"));
  auto unit = n.unit;
  if (unit.ends_with("iB"))
    unit.remove_suffix(2);
  else if (unit.size() > 1 && unit.ends_with('B'))
    unit.remove_suffix(1);
  double factor = 0;
  if (unit.empty() || unit == "B")
    factor = 1;
  else if (unit == "K" || unit == "k")
    factor = 0x1p10;
  else if (unit == "M" || unit == "m")
    factor = 0x1p20;
  else if (unit == "G" || unit == "g")
    factor = 0x1p30;
  else if (unit == "T" || unit == "t")
    factor = 0x1p40;
  double bytes = n.value * factor;
  if (factor == 0 || bytes >= 0x1p62)
    return fail(Code::invalid, fmt::format("'{}' is not a size (write it as 64M or 2G)", text));
  return static_cast<uint64_t>(bytes);
}

Result<std::chrono::milliseconds> parse_duration(std::string_view text) {
  ISOLA_TRY(Number n, split(text, "time (write it as 5s or 10m)"));
  double ms = 0;
  if (n.unit == "ms")
    ms = 1;
  else if (n.unit.empty() || n.unit == "s")
    ms = 1e3;
  else if (n.unit == "m")
    ms = 60e3;
  else if (n.unit == "h")
    ms = 3600e3;
  else if (n.unit == "d")
    ms = 86400e3;
  double total = n.value * ms;
  if (ms == 0 || total >= 1e15)
    return fail(Code::invalid, fmt::format("'{}' is not a time (write it as 5s or 10m)", text));
  return std::chrono::milliseconds(static_cast<int64_t>(std::ceil(total)));
}

std::string format_size(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string format_duration(std::chrono::nanoseconds duration) {
  double us = static_cast<double>(duration.count()) / 1e3;
  if (us < 1000) return fmt::format("{:.0f} us", us);
  if (us < 1e6) return fmt::format("{:.2f} ms", us / 1e3);
  return fmt::format("{:.1f} s", us / 1e6);
}

}  // namespace isola
