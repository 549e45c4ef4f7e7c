// Where a page of a list ended, as text: newest first, by time and id.
#pragma once

#include <string>

#include "base/error.h"
#include "store/records.h"

namespace isola::store {

struct Cursor {
  Millis created = 0;
  std::string id;
};
std::string to_text(const Cursor& cursor);
Result<Cursor> parse_cursor(const std::string& text);

}  // namespace isola::store
