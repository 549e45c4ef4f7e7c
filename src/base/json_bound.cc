#include "base/json_bound.h"

namespace isola {

Result<void> check_json_bound(std::string_view text, JsonBound bound) {
  size_t depth = 0, values = 1;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
      continue;
    }
    switch (c) {
      case '"': quoted = true; break;
      case '[':
      case '{':
        ++values;
        if (++depth > bound.depth) return fail(Code::invalid, "the JSON body is nested too deeply");
        break;
      case ']':
      case '}':
        if (depth > 0) --depth;
        break;
      case ',':
      case ':': ++values; break;
      default: break;
    }
    if (values > bound.values) return fail(Code::invalid, "the JSON body has too many values");
  }
  return {};
}

}  // namespace isola
