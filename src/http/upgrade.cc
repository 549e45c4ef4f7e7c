// Leaving HTTP: a WebSocket of our own, or the bare bytes for a proxy.
#include <fmt/format.h>
#include <poll.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/websocket/stream.hpp>

#include "http/connection.h"
#include "http/text.h"
#include "http/websocket.h"

namespace isola::http {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace ws = boost::beast::websocket;
using error_code = boost::system::error_code;
using namespace std::chrono_literals;

namespace {

constexpr size_t kKeySize = 24;         // 16 bytes in base64
constexpr size_t kMostEarly = 1 << 10;  // that a client may send before it has the answer to its handshake

// Operations that the end of a stream cancels still complete, and look at the connection when they do: it goes after
// them.
void let_go(std::shared_ptr<Connection> connection) {
  connection->cut();
  auto executor = connection->transport().get_executor();
  asio::post(executor,
             [executor, c = std::move(connection)]() mutable { asio::post(executor, [c = std::move(c)] {}); });
}

class BeastSocket : public WebSocket {
 public:
  // `headers`: "Name: value\r\n"…, for the answer.
  BeastSocket(std::shared_ptr<Connection> connection, const WebSocketOptions& options, std::string subprotocol,
              std::string headers)
      : connection_(std::move(connection)), stream_(connection_->transport()), subprotocol_(std::move(subprotocol)) {
    stream_.read_message_max(options.max_message);
    ws::stream_base::timeout time{};
    time.handshake_timeout = 10s;
    time.idle_timeout = options.silence;
    time.keep_alive_pings = true;
    stream_.set_option(time);
    stream_.auto_fragment(false);
    std::string chosen = subprotocol_;
    stream_.set_option(ws::stream_base::decorator([chosen, headers = std::move(headers)](ws::response_type& reply) {
      for (std::string_view rest = headers; !rest.empty();) {
        std::string_view line = rest.substr(0, rest.find("\r\n"));
        rest.remove_prefix(line.size() + 2);
        size_t colon = line.find(": ");
        reply.insert(beast::string_view(line.data(), colon),
                     beast::string_view(line.data() + colon + 2, line.size() - colon - 2));
      }
      if (!chosen.empty()) reply.set(beast::http::field::sec_websocket_protocol, chosen);
      reply.erase(beast::http::field::server);
    }));
  }
  ~BeastSocket() override { let_go(connection_); }

  Task<Result<void>> accept(std::string_view head) {
    auto [ec] = co_await stream_.async_accept(asio::buffer(head.data(), head.size()), kUse);
    if (ec) co_return fail(Code::invalid, "this is no WebSocket handshake: " + ec.message());
    co_return Result<void>();
  }

  Task<Result<std::optional<WebSocketMessage>>> read() override {
    beast::flat_buffer bytes;
    auto [ec, n] = co_await stream_.async_read(bytes, kUse);
    if (ec == ws::error::closed) co_return std::optional<WebSocketMessage>();
    if (ec == ws::error::message_too_big || ec == ws::error::buffer_overflow) {
      co_return fail(Code::invalid, "the message is larger than this call takes");
    }
    if (ec == beast::error::timeout) co_return fail(Code::timeout, "the peer said nothing for too long");
    if (ec) co_return fail(Code::unavailable, "the WebSocket broke: " + ec.message());
    auto data = bytes.cdata();
    co_return WebSocketMessage{std::string(static_cast<const char*>(data.data()), data.size()), stream_.got_text()};
  }

  Task<Result<void>> write(std::string_view data, bool text) override {
    stream_.text(text);
    connection_->set_deadline(connection_->writing(), connection_->limits().write_time);
    auto [ec, n] = co_await stream_.async_write(asio::buffer(data.data(), data.size()), kUse);
    connection_->clear_deadline(connection_->writing());
    if (ec) co_return fail(Code::unavailable, "the WebSocket broke: " + ec.message());
    co_return Result<void>();
  }

  Task<Result<void>> close(uint16_t code, std::string_view reason) override {
    reason = reason.substr(0, 123);  // what a control frame holds
    ws::close_reason why(static_cast<ws::close_code>(code), beast::string_view(reason.data(), reason.size()));
    auto [ec] = co_await stream_.async_close(why, kUse);
    if (ec) co_return fail(Code::unavailable, "the WebSocket broke: " + ec.message());
    co_return Result<void>();
  }

  // Nobody tells of an end behind bytes that are not read, but the kernel knows.
  Task<void> gone() override {
    Transport::Socket& socket = connection_->transport().socket;
    asio::steady_timer look(socket.get_executor());
    for (;;) {
      // First the wait: what somebody sent before the end of it is still to be taken.
      look.expires_after(500ms);
      auto [ec] = co_await look.async_wait(kUse);
      if (ec) co_return;
      pollfd peer{socket.native_handle(), POLLRDHUP, 0};
      if (!socket.is_open() || ::poll(&peer, 1, 0) != 0) co_return;
    }
  }

  std::string_view subprotocol() const override { return subprotocol_; }
  uint16_t close_code() const override {
    uint16_t code = stream_.reason().code;
    return code == ws::close_code::none ? 0 : code;
  }

 private:
  std::shared_ptr<Connection> connection_;
  ws::stream<Transport&, false> stream_;
  std::string subprotocol_;
};

class BareStream : public RawStream {
 public:
  explicit BareStream(std::shared_ptr<Connection> connection) : connection_(std::move(connection)) {}
  ~BareStream() override { let_go(connection_); }

  Task<Result<std::string_view>> read_some() override {
    Buffer& buffer = connection_->buffer();
    buffer.consume(std::exchange(given_, 0));
    if (buffer.empty()) {
      ISOLA_CO_TRY(size_t n, co_await connection_->fill(64 << 10, 0ms));
      if (n == 0) co_return std::string_view();
    }
    given_ = buffer.size();
    co_return buffer.view();
  }
  Task<Result<void>> write(std::string_view bytes) override { return connection_->send(bytes); }
  Task<Result<void>> shutdown_write() override {
    error_code ec;
    Transport& transport = connection_->transport();
    if (transport.tls) {
      // Says close_notify and does not wait for the peer's: it may have much to say yet.
      ::SSL_set_quiet_shutdown(transport.tls->native_handle(), 0);
      connection_->set_deadline(connection_->writing(), 2s);
      (void)co_await transport.tls->async_shutdown(kUse);
      connection_->clear_deadline(connection_->writing());
    }
    transport.socket.shutdown(Transport::Socket::shutdown_send, ec);
    if (ec) co_return fail(Code::unavailable, "the client is gone");
    co_return Result<void>();
  }
  void close() override { connection_->cut(); }

 private:
  std::shared_ptr<Connection> connection_;
  size_t given_ = 0;
};

}  // namespace

Result<void> Exchange::check_websocket() const {
  if (!wants_upgrade() || !equal_nocase(header("Upgrade"), "websocket") || header("Sec-WebSocket-Key").empty())
    return isola::fail(Code::invalid, "this call is a WebSocket: ask for an upgrade");
  if (method() != "GET" || state_->connection.parser().version != 11 || header("Sec-WebSocket-Version") != "13")
    return isola::fail(Code::invalid, "only WebSocket version 13, by GET of HTTP/1.1, is understood");
  if (header("Sec-WebSocket-Key").size() != kKeySize)
    return isola::fail(Code::invalid, "Sec-WebSocket-Key: must be 16 bytes in base64");
  return {};
}

Task<Result<std::unique_ptr<WebSocket>>> Exchange::upgrade(const WebSocketOptions& options) {
  State& s = *state_;
  if (replied()) co_return isola::fail(Code::invalid, "this exchange has a reply already");
  ISOLA_CO_CHECK(check_websocket());
  std::string chosen;
  any_item(header("Sec-WebSocket-Protocol"), [&](std::string_view item) {
    for (const std::string& ours : options.subprotocols) {
      if (ours == item) chosen = item;
    }
    return !chosen.empty();
  });
  Connection& c = s.connection;
  // Beast has little room for what it reads at first: it gets what it looks at, and whatever came behind the handshake.
  if (c.buffer().size() > kMostEarly)
    co_return isola::fail(Code::invalid, "too much was sent before the handshake was answered");
  std::string head = fmt::format(
      "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: {}\r\n\r\n{}",
      header("Sec-WebSocket-Key"), c.buffer().view());
  c.buffer().consume(c.buffer().size());
  s.taken = true;
  auto socket = std::make_unique<BeastSocket>(c.shared_from_this(), options, std::move(chosen),
                                              fmt::format("X-Request-Id: {}\r\n{}", s.request_id, s.headers));
  ISOLA_CO_CHECK(co_await socket->accept(head));
  s.status = 101;
  std::unique_ptr<WebSocket> result = std::move(socket);
  co_return result;
}

Result<std::unique_ptr<RawStream>> Exchange::take_over() {
  State& s = *state_;
  if (replied()) return isola::fail(Code::invalid, "this exchange has a reply already");
  s.taken = true;
  s.status = 101;
  s.connection.buffer().consume(std::exchange(s.held, 0));
  return std::make_unique<BareStream>(s.connection.shared_from_this());
}

}  // namespace isola::http
