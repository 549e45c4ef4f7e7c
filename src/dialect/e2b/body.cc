#include "dialect/e2b/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "dialect/e2b/connect.h"
#include "http/text.h"

namespace isola::e2b {

using nlohmann::json;

namespace {

constexpr double kLongest = 10.0 * 365 * 24 * 3600;
constexpr auto kSwallowTime = std::chrono::minutes(10);

}  // namespace

Task<Result<json>> read_body(http::Exchange& ex, bool may_be_empty, size_t most) {
  ISOLA_CO_TRY(std::string text, co_await ex.read_all(most));
  if (text.empty() && may_be_empty) co_return json::object();
  co_return parse_object(text);
}

Task<void> swallow(http::Exchange& ex) {
  if (ex.waits_to_send()) co_return;  // who asked first hears the answer first
  const auto until = std::chrono::steady_clock::now() + kSwallowTime;
  while (std::chrono::steady_clock::now() < until) {
    auto piece = co_await ex.read_some();
    if (!piece || piece->empty()) co_return;
  }
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

Result<int64_t> seconds(const json& body, const char* name, double otherwise) {
  double value = otherwise;
  if (given(body, name)) {
    if (!body[name].is_number()) return fail(Code::invalid, std::string(name) + ": must be a number of seconds");
    value = body[name].get<double>();
  }
  if (!(value >= 0)) return fail(Code::invalid, "Timeout must be greater than 0");
  if (value > kLongest)
    return fail(Code::invalid, fmt::format("Timeout cannot be greater than {} hours", kLongest / 3600));
  return std::max<int64_t>(1, std::llround(value * 1000));
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return http::lower(c); });
  return text;
}

}  // namespace isola::e2b
