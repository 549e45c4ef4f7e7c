// A WebSocket for programs that wait, or that poll(2) over several descriptors at once (a terminal and this, say).
//
//   auto socket = WebSocketClient::connect(url, {{"X-API-Key", key}}, {"tty.v1"});
//   (*socket)->write("hello", true);
//   poll(… (*socket)->fd() …);
//   for (;;) {                                           // after poll: until there is nothing more
//     auto event = (*socket)->next(0ms);
//     if (!event || event->kind == WebSocketEvent::nothing) break;
//     …
//   }
// Pings are answered within next().
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "http/blocking_stream.h"
#include "http/url.h"

namespace isola::http {

struct WebSocketEvent {
  enum Kind { nothing, message, closed } kind = nothing;
  std::string data;
  bool text = false;
  uint16_t code = 0;  // of closed; 0 if the server gave none
};

class WebSocketClient {
 public:
  static Result<std::unique_ptr<WebSocketClient>> connect(const Url& url, const Pairs& headers = {},
                                                          const std::vector<std::string>& subprotocols = {},
                                                          const ClientOptions& options = {});
  ~WebSocketClient();

  // Waits as long as told for a whole message (-1 ms: for ever).
  Result<WebSocketEvent> next(std::chrono::milliseconds time);
  Result<void> write(std::string_view data, bool text);
  Result<void> ping();
  Result<void> close(uint16_t code = 1000, std::string_view reason = {});
  std::string_view subprotocol() const { return subprotocol_; }
  int fd() const { return stream_->fd(); }

  static constexpr size_t kMaxMessage = 64 << 20;

 private:
  WebSocketClient() = default;
  Result<void> frame(unsigned char opcode, std::string_view data);
  // One frame out of in_, if it is all there; it may make something of `event`.
  Result<bool> take(WebSocketEvent& event);

  std::unique_ptr<BlockingStream> stream_;
  ClientOptions options_;
  std::string subprotocol_, in_, message_;
  size_t used_ = 0;
  bool text_ = false, within_ = false, close_sent_ = false, closed_ = false;
};

}  // namespace isola::http
