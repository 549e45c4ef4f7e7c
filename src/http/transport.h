// The bytes of one connection, plain or under TLS, as one type: so that everything above is compiled once. Satisfies
// what Beast asks of an asynchronous stream.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/role.hpp>
#include <memory>

namespace isola::http {

// Errors of streams are values, not exceptions.
inline constexpr auto kUse = boost::asio::as_tuple(boost::asio::use_awaitable);

class Transport {
 public:
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, boost::asio::io_context::executor_type>;
  using Tls = boost::asio::ssl::stream<Socket&>;
  using executor_type = Socket::executor_type;
  using error_code = boost::system::error_code;

  explicit Transport(Socket s) : socket(std::move(s)) {}
  executor_type get_executor() { return socket.get_executor(); }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, Buffers b) {
          if (tls) {
            tls->async_read_some(b, std::move(handler));
          } else {
            socket.async_read_some(b, std::move(handler));
          }
        },
        token, buffers);
  }
  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, void(error_code, size_t)>(
        [this](auto handler, Buffers b) {
          if (tls) {
            tls->async_write_some(b, std::move(handler));
          } else {
            socket.async_write_some(b, std::move(handler));
          }
        },
        token, buffers);
  }

  Socket socket;
  std::unique_ptr<Tls> tls;
};

// How Beast cuts a WebSocket whose time is up.
inline void beast_close_socket(Transport& transport) {
  boost::system::error_code ec;
  transport.socket.close(ec);
}

// Beast calls this when a WebSocket is over: TCP's end is enough, for both.
template <typename Handler>
void async_teardown(boost::beast::role_type, Transport& transport, Handler&& handler) {
  boost::system::error_code ec;
  transport.socket.shutdown(Transport::Socket::shutdown_both, ec);
  boost::asio::post(transport.get_executor(),
                    [h = std::forward<Handler>(handler)]() mutable { h(boost::system::error_code()); });
}

}  // namespace isola::http
