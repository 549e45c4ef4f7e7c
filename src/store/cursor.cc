#include "store/cursor.h"

#include <fmt/format.h>

#include <charconv>

namespace isola::store {

std::string to_text(const Cursor& cursor) { return fmt::format("{:x}.{}", cursor.created, cursor.id); }

Result<Cursor> parse_cursor(const std::string& text) {
  Cursor cursor;
  const char* end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, cursor.created, 16);
  if (error != std::errc() || at == end || *at != '.' || end - at < 2)
    return fail(Code::invalid, "the cursor is not one that a list gave");
  cursor.id.assign(at + 1, end);
  return cursor;
}

}  // namespace isola::store
