// The Connect protocol with JSON, as far as envd's clients use it: a call is a POST of one JSON message; a stream is a
// chunked body of envelopes {u8 flags, u32 length (big endian), JSON}, the last of which has flag 2 and says how it
// ended.
//
//   RpcStream stream(ex);
//   co_await stream.send(R"({"event":{"start":{"pid":7}}})");
//   co_await stream.end();                                   // or end(RpcError{"not_found", "…"})
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace isola::e2b {

struct RpcError {
  std::string code;  // Connect's own words: not_found, invalid_argument …
  std::string message;
};

RpcError rpc_error(const Error& error);
int status_of_rpc(std::string_view code);
std::string rpc_body(const RpcError& error);  // {"code":…,"message":…}
void fail_rpc(http::Exchange& ex, const RpcError& error);

// A JSON object; an empty text is an empty one. Deeper or more than any message is: invalid.
Result<nlohmann::json> parse_object(std::string_view text);

std::string envelope(uint8_t flags, std::string_view json);

// Takes envelopes out of bytes that arrive in pieces.
class EnvelopeReader {
 public:
  explicit EnvelopeReader(size_t most) : most_(most) {}  // bytes of one message
  Result<void> feed(std::string_view bytes);
  std::optional<std::string> next();  // the next whole message; compressed ones are refused by feed
  bool empty() const { return buffer_.empty(); }
  size_t held() const { return buffer_.size(); }  // bytes of messages that are not whole yet

 private:
  size_t most_;
  std::string buffer_;
};

class RpcStream {
 public:
  explicit RpcStream(http::Exchange& ex) : ex_(ex) {}
  // Each sends the head first if nobody did.
  Task<Result<void>> send(std::string_view json);
  Task<void> end(std::optional<RpcError> error = {});
  Task<Result<void>> flush();  // what waits
  // What waits is written with the next send.
  void hold(std::string_view json);
  size_t held() const { return held_.size(); }

 private:
  void begin();
  http::Exchange& ex_;
  std::string held_;  // messages, as they are sent
  bool begun_ = false;
};

// How long the client lets the call take; nothing: for ever. An error for what is no number.
Result<std::optional<int64_t>> timeout_of(const http::Exchange& ex);
// How often a silent stream must say that it lives.
int64_t keepalive_of(const http::Exchange& ex);

}  // namespace isola::e2b
