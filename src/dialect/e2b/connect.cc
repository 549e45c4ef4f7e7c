#include "dialect/e2b/connect.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json_bound.h"
#include "dialect/shared/text.h"

namespace isola::e2b {

using nlohmann::json;

RpcError rpc_error(const Error& error) {
  auto word = [&]() -> const char* {
    switch (error.code) {
      case Code::invalid: return "invalid_argument";
      case Code::not_found: return "not_found";
      case Code::exists: return "already_exists";
      case Code::denied: return "permission_denied";
      case Code::unsupported: return "unimplemented";
      case Code::exhausted: return "resource_exhausted";
      case Code::unavailable: return "unavailable";
      case Code::timeout: return "deadline_exceeded";
      case Code::corrupt:
      case Code::internal: break;
    }
    return "internal";
  };
  return {word(), error.message};
}

int status_of_rpc(std::string_view code) {
  struct Word {
    std::string_view code;
    int status;
  };
  static constexpr Word kWords[] = {
      {"canceled", 499},           {"invalid_argument", 400},    {"deadline_exceeded", 504}, {"not_found", 404},
      {"already_exists", 409},     {"permission_denied", 403},   {"unimplemented", 501},     {"unavailable", 503},
      {"resource_exhausted", 429}, {"failed_precondition", 400}, {"unauthenticated", 401},   {"data_loss", 500}};
  for (const auto& word : kWords)
    if (word.code == code) return word.status;
  return 500;
}

std::string rpc_body(const RpcError& error) {
  return dialect::dump({{"code", error.code}, {"message", error.message}});
}

void fail_rpc(http::Exchange& ex, const RpcError& error) {
  int status = status_of_rpc(error.code);
  if (status == 429 || status == 503) ex.set_header("Retry-After", "1");
  ex.reply(status, rpc_body(error));
}

Result<json> parse_object(std::string_view text) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return json::object();
  ISOLA_CHECK(check_json_bound(text, {.depth = 32}));
  json value = json::parse(text, nullptr, false);
  if (value.is_discarded()) return fail(Code::invalid, "the body is not valid JSON");
  if (!value.is_object()) return fail(Code::invalid, "the body must be a JSON object");
  return value;
}

std::string envelope(uint8_t flags, std::string_view json) {
  std::string out;
  out.reserve(json.size() + 5);
  auto size = static_cast<uint32_t>(json.size());
  out += static_cast<char>(flags);
  for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(size >> shift & 0xff);
  out += json;
  return out;
}

namespace {

uint32_t length_in(std::string_view header) {
  uint32_t size = 0;
  for (size_t i = 1; i < 5; ++i) size = size << 8 | static_cast<unsigned char>(header[i]);
  return size;
}

}  // namespace

Result<void> EnvelopeReader::feed(std::string_view bytes) {
  buffer_ += bytes;
  if (buffer_.size() < 5) return {};
  if (buffer_[0] & 1) return fail(Code::unsupported, "compressed messages are not understood here");
  if (length_in(buffer_) > most_) return fail(Code::exhausted, "the message is too large");
  return {};
}

std::optional<std::string> EnvelopeReader::next() {
  if (buffer_.size() < 5) return std::nullopt;
  size_t size = length_in(buffer_);
  if (buffer_.size() - 5 < size) return std::nullopt;
  std::string message = buffer_.substr(5, size);
  buffer_.erase(0, 5 + size);
  return message;
}

void RpcStream::begin() {
  if (!begun_) ex_.begin(200, "application/connect+json");
  begun_ = true;
}

void RpcStream::hold(std::string_view json) { held_ += envelope(0, json); }

Task<Result<void>> RpcStream::send(std::string_view json) {
  hold(json);
  co_return co_await flush();
}

Task<Result<void>> RpcStream::flush() {
  begin();
  std::string bytes = std::move(held_);
  held_.clear();
  co_return co_await ex_.write(bytes);
}

Task<void> RpcStream::end(std::optional<RpcError> error) {
  begin();
  std::string last = "{}";
  if (error) last = dialect::dump({{"error", {{"code", error->code}, {"message", error->message}}}});
  std::string bytes = std::move(held_) + envelope(2, last);
  held_.clear();
  if (auto sent = co_await ex_.write(bytes); !sent) co_return;
  (void)co_await ex_.finish();
}

namespace {

// What the protocol allows: ten digits.
std::optional<int64_t> number(std::string_view text) {
  if (text.size() > 10) return std::nullopt;
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

Result<std::optional<int64_t>> timeout_of(const http::Exchange& ex) {
  auto text = ex.header("connect-timeout-ms");
  if (text.empty()) return std::optional<int64_t>();
  auto value = number(text);
  if (!value) return fail(Code::invalid, "connect-timeout-ms: must be a number of milliseconds");
  if (*value == 0) return std::optional<int64_t>();
  return value;
}

int64_t keepalive_of(const http::Exchange& ex) {
  auto value = number(ex.header("keepalive-ping-interval"));
  if (!value || *value < 1 || *value > 3600) return 90'000;
  return *value * 1000;
}

}  // namespace isola::e2b
