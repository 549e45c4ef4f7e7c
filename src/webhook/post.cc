#include "webhook/post.h"

#include <fmt/format.h>
#include <openssl/ssl.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/ssl.hpp>

#include "gate/address.h"

namespace isola::webhook {

namespace net = boost::asio;
namespace beast = boost::beast;
using net::ip::tcp;

namespace {

constexpr auto kWait = net::as_tuple(net::use_awaitable);
constexpr size_t kMostHead = 16 << 10;

using Message = beast::http::request<beast::http::string_body>;

std::unexpected<Error> trouble(const std::string& what, const boost::system::error_code& code) {
  return fail(code == beast::error::timeout ? Code::timeout : Code::unavailable, what + ": " + code.message());
}

// Where it may go, of what the name means.
Result<std::vector<tcp::endpoint>> permitted(const tcp::resolver::results_type& found, const Post& post) {
  std::vector<tcp::endpoint> endpoints;
  for (const auto& entry : found) {
    ISOLA_TRY(auto address, gate::Address::of(entry.endpoint().data()));
    auto place = gate::place_of(address).place;
    using enum gate::Place;
    if (place == open || (post.inside && (place == local || place == loopback || place == link_local)))
      endpoints.push_back(entry.endpoint());
  }
  if (endpoints.empty())
    return fail(Code::denied, post.url.host + " leads to no address that webhooks of this project may reach");
  return endpoints;
}

Message message_of(const Post& post) {
  Message message(beast::http::verb::post, post.url.target, 11);
  message.set(beast::http::field::host, post.url.authority());
  message.set(beast::http::field::user_agent, "isola/" ISOLA_VERSION);
  message.set(beast::http::field::content_type, post.type);
  message.set(beast::http::field::connection, "close");
  for (const auto& [name, value] : post.headers) message.set(name, value);
  message.body() = post.body;
  message.prepare_payload();
  return message;
}

template <typename Stream>
Task<Result<int>> exchange(Stream& stream, const Post& post) {
  Message message = message_of(post);
  auto [sent, bytes] = co_await beast::http::async_write(stream, message, kWait);
  (void)bytes;
  if (sent) co_return trouble("cannot send to " + post.url.host, sent);
  beast::flat_buffer buffer(kMostHead);
  beast::http::response_parser<beast::http::empty_body> parser;
  parser.header_limit(kMostHead);
  auto [read, taken] = co_await beast::http::async_read_header(stream, buffer, parser, kWait);
  (void)taken;
  if (read) co_return trouble("no answer of " + post.url.host, read);
  co_return static_cast<int>(parser.get().result_int());
}

// Made once: reading the machine's certificates takes milliseconds.
net::ssl::context& trust() {
  static net::ssl::context context = [] {
    net::ssl::context made(net::ssl::context::tls_client);
    made.set_default_verify_paths();
    made.set_verify_mode(net::ssl::verify_peer);
    ::SSL_CTX_set_min_proto_version(made.native_handle(), TLS1_2_VERSION);
    return made;
  }();
  return context;
}

Task<Result<int>> over_tls(beast::tcp_stream plain, const Post& post) {
  net::ssl::stream<beast::tcp_stream> stream(std::move(plain), trust());
  stream.set_verify_callback(net::ssl::host_name_verification(post.url.host));
  // An address has no server name.
  if (!gate::Address::parse(post.url.host)) ::SSL_set_tlsext_host_name(stream.native_handle(), post.url.host.c_str());
  auto [shaken] = co_await stream.async_handshake(net::ssl::stream_base::client, kWait);
  if (shaken) co_return trouble("TLS with " + post.url.host, shaken);
  co_return co_await exchange(stream, post);
}

}  // namespace

Task<Result<int>> post(Post post) {
  auto executor = co_await net::this_coro::executor;
  tcp::resolver resolver(executor);
  auto [unknown, found] = co_await resolver.async_resolve(post.url.host, std::to_string(post.url.port),
                                                          tcp::resolver::numeric_service, kWait);
  if (unknown) co_return trouble("cannot resolve " + post.url.host, unknown);
  ISOLA_CO_TRY(auto endpoints, permitted(found, post));
  beast::tcp_stream stream(executor);
  stream.expires_after(post.time);
  auto [failed, to] = co_await stream.async_connect(endpoints, kWait);
  (void)to;
  if (failed) co_return trouble("cannot connect to " + post.url.authority(), failed);
  if (post.url.tls) co_return co_await over_tls(std::move(stream), post);
  co_return co_await exchange(stream, post);
}

}  // namespace isola::webhook
