#include "dialect/native/query.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>

#include "guest/messages.h"

namespace isola::native {

Result<uint64_t> whole_number(std::string_view name, std::string_view text, uint64_t least, uint64_t most) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  bool whole = !text.empty() && error == std::errc() && end == text.data() + text.size();
  if (whole && value >= least && value <= most) return value;
  if (most == UINT64_MAX) return fail(Code::invalid, fmt::format("{}: must be a whole number", name));
  return fail(Code::invalid, fmt::format("{}: must be between {} and {}", name, least, most));
}

Result<uint64_t> query_number(const http::Exchange& ex, std::string_view name, uint64_t otherwise, uint64_t least,
                              uint64_t most) {
  auto text = ex.query(name);
  if (!text) return otherwise;
  return whole_number(name, *text, least, most);
}

std::optional<int64_t> parse_moment(const std::string& text) {
  constexpr std::string_view kForm = "0000-00-00T00:00:00";  // or its first ten
  size_t length = std::min(text.size(), kForm.size());
  if (length != kForm.size() && length != 10) return std::nullopt;
  auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  for (size_t i = 0; i < length; ++i)
    if (kForm[i] == '0' ? !is_digit(text[i]) : text[i] != kForm[i]) return std::nullopt;
  auto number = [&](size_t at, size_t digits) {
    int value = 0;
    for (size_t i = at; i < at + digits; ++i) value = value * 10 + (text[i] - '0');
    return value;
  };
  using namespace std::chrono;
  const year_month_day day(year(number(0, 4)), month(static_cast<unsigned>(number(5, 2))),
                           std::chrono::day(static_cast<unsigned>(number(8, 2))));
  if (!day.ok()) return std::nullopt;
  milliseconds time = sys_days(day).time_since_epoch();
  if (length == 10) return time.count();
  if (number(11, 2) > 23 || number(14, 2) > 59 || number(17, 2) > 59) return std::nullopt;
  time += hours(number(11, 2)) + minutes(number(14, 2)) + seconds(number(17, 2));
  std::string_view rest = std::string_view(text).substr(length);
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    size_t digits = 0;
    for (int64_t worth = 100; digits < rest.size() && is_digit(rest[digits]); ++digits, worth /= 10)
      time += milliseconds(worth * (rest[digits] - '0'));
    if (digits == 0) return std::nullopt;
    rest.remove_prefix(digits);
  }
  if (!rest.empty() && rest != "Z") return std::nullopt;
  return time.count();
}

Result<uint64_t> query_sequence(const http::Exchange& ex) {
  auto from = ex.query("from");
  if (!from || from->empty()) return uint64_t{0};
  if (*from == "now") return guest::kFromNow;
  auto number = whole_number("from", *from);
  if (!number) return fail(Code::invalid, "from: must be a sequence number, or now");
  return number;
}

Result<void> only_queries(const http::Exchange& ex, std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : ex.queries())
    if (std::find(known.begin(), known.end(), name) == known.end())
      return fail(Code::invalid, "there is no query parameter \"" + name + "\" here");
  return {};
}

Result<bool> query_flag(const http::Exchange& ex, std::string_view name, bool otherwise) {
  auto text = ex.query(name);
  if (!text) return otherwise;
  if (*text == "true" || *text == "false") return *text == "true";
  return fail(Code::invalid, fmt::format("{}: must be true or false", name));
}

}  // namespace isola::native
