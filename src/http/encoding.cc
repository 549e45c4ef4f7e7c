#include "http/encoding.h"

#include "http/text.h"

namespace isola::http {

namespace {

// "0", "0." and "0.000" are nothing; all else is a little at least.
bool is_nothing(std::string_view weight) {
  return weight.starts_with('0') && weight.find_first_not_of("0.") == weight.npos;
}

}  // namespace

bool compressible(std::string_view type) {
  return type.starts_with("text/") || type.starts_with("application/json") ||
         type.starts_with("application/javascript") || type.starts_with("application/xml") ||
         type.starts_with("image/svg+xml") || type.starts_with("application/x-ndjson");
}

bool accepts_gzip(std::string_view accepted) {
  return any_item(accepted, [](std::string_view item) {
    size_t semicolon = item.find(';');
    if (!equal_nocase(trim(item.substr(0, semicolon)), "gzip")) return false;
    std::string_view weight = semicolon == item.npos ? std::string_view() : trim(item.substr(semicolon + 1));
    return !(equal_nocase(weight.substr(0, 2), "q=") && is_nothing(weight.substr(2)));
  });
}

}  // namespace isola::http
