#include "dialect/native/query.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

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
