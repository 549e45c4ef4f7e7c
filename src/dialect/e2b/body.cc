#include "dialect/e2b/body.h"

#include <algorithm>

#include "dialect/e2b/connect.h"
#include "http/text.h"

namespace isola::e2b {

using nlohmann::json;

Task<Result<json>> read_body(http::Exchange& ex, bool may_be_empty, size_t most) {
  ISOLA_CO_TRY(std::string text, co_await ex.read_all(most));
  if (text.empty() && may_be_empty) co_return json::object();
  co_return parse_object(text);
}

bool given(const json& body, const char* name) {
  auto at = body.find(name);
  return at != body.end() && !at->is_null();
}

Result<std::string> text(const json& body, const char* name) {
  if (!given(body, name)) return std::string();
  if (!body[name].is_string()) return fail(Code::invalid, std::string(name) + ": must be a string");
  return body[name].get<std::string>();
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return http::lower(c); });
  return text;
}

}  // namespace isola::e2b
