// A WebSocket on the server's side, from Exchange::upgrade(). One read and one write may be under way at the same time.
//
//   WebSocketOptions options{.subprotocols = {"tty.v1"}};
//   auto socket = co_await ex.upgrade(options);
//   if (!socket) co_return ex.fail(socket.error());
//   for (;;) {
//     auto message = co_await (*socket)->read();
//     if (!message || !*message) break;                // an error, or the peer closed
//     co_await (*socket)->write((*message)->data, (*message)->text);
//   }
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/task.h"

namespace isola::http {

struct WebSocketMessage {
  std::string data;
  bool text = false;
};

struct WebSocketOptions {
  std::vector<std::string> subprotocols;  // ours; the first of the client's list that is here is chosen
  size_t max_message = 16 << 20;
  // A peer that says nothing for half of it is pinged; one that says nothing for all of it is cut.
  std::chrono::seconds silence{60};
};

class WebSocket {
 public:
  virtual ~WebSocket() = default;  // without close(): the connection is cut
  // Nothing: the peer closed in order.
  virtual Task<Result<std::optional<WebSocketMessage>>> read() = 0;
  virtual Task<Result<void>> write(std::string_view data, bool text) = 0;
  virtual Task<Result<void>> close(uint16_t code = 1000, std::string_view reason = {}) = 0;
  // Completes when the peer is gone, as far as that shows without a read: for waits between one read and the next.
  virtual Task<void> gone() = 0;
  virtual std::string_view subprotocol() const = 0;  // the chosen one, or empty
  virtual uint16_t close_code() const = 0;           // the peer's, after read() gave nothing; 0 if it gave none
};

}  // namespace isola::http
