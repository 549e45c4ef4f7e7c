#include "http/connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "http/request_id.h"
#include "http/text.h"

namespace isola::http {

namespace asio = boost::asio;
using error_code = boost::system::error_code;
using namespace std::chrono_literals;

namespace {
constexpr size_t kDrain = 64 << 10;  // of an unread body, for the sake of keeping a connection
constexpr size_t kLinger = 4 << 20;  // of whatever comes after our last word
constexpr unsigned kStreak = 32;     // pipelined requests in a row before others get their turn
}  // namespace

Connection::Connection(std::shared_ptr<Server::Core> core, Lane& lane, Transport::Socket socket)
    : core_(std::move(core)), lane_(lane), transport_(std::move(socket)), timer_(transport_.get_executor()) {
  place_ = lane_.connections.insert(lane_.connections.end(), this);
  core_->connections++;
  error_code ec;
  auto end = transport_.socket.remote_endpoint(ec);
  peer_ = ec ? "unknown" : end.address().to_string(ec);
  if (peer_.starts_with("::ffff:")) peer_.erase(0, 7);
  transport_.socket.native_non_blocking(true, ec);
}

Connection::~Connection() {
  lane_.connections.erase(place_);
  core_->gone();
}

Task<void> Connection::run(std::shared_ptr<Connection> self) {
  Connection& c = *self;
  bool go_on = true;
  if (auto context = c.core_->tls_now()) {
    c.transport_.tls = std::make_unique<Transport::Tls>(c.transport_.socket, *context);
    go_on = co_await c.handshake();
  }
  while (go_on && !c.retiring_ && !c.cut_) {
    go_on = co_await c.read_head();
    if (!go_on) break;
    c.busy_ = true;
    go_on = co_await c.serve_one();
    c.busy_ = false;
    c.served_ = true;
    c.buffer_.shrink();
    if (c.buffer_.empty()) {
      c.streak_ = 0;
    } else if (++c.streak_ % kStreak == 0) {
      co_await asio::post(c.transport_.get_executor(), asio::use_awaitable);
    }
  }
  c.stop_clock();
}

std::chrono::milliseconds Connection::idle_time() const {
  const bool many = core_->connections > core_->max_connections / 2;
  return served_ && !many ? limits().idle_time : std::min(limits().idle_time, limits().short_idle_time);
}

Task<bool> Connection::handshake() {
  set_deadline(reading_, limits().header_time);
  auto [ec] = co_await transport_.tls->async_handshake(asio::ssl::stream_base::server, kUse);
  clear_deadline(reading_);
  co_return !ec && !reading_.late;
}

Task<bool> Connection::read_head() {
  HeadScanner scan;
  // An empty line before a request is passed over, as HTTP says; old clients send one after a body.
  if (buffer_.view().starts_with("\r\n")) buffer_.consume(2);
  bool begun = false;
  for (;;) {
    if (!buffer_.empty()) {
      auto state = scan.feed(buffer_.view());
      if (state == HeadScanner::State::complete && scan.size() == 2) {  // the empty line came by itself
        buffer_.consume(2);
        scan.reset();
        continue;
      }
      if (state == HeadScanner::State::complete && scan.size() <= limits().header_bytes) break;
      if (state == HeadScanner::State::bad) {
        co_await refuse(400, "invalid", scan.why());
        co_return false;
      }
      if (buffer_.size() >= limits().header_bytes) {
        co_await refuse(431, "headers_too_large",
                        fmt::format("the head of a request may have {} bytes", limits().header_bytes));
        co_return false;
      }
      if (!begun) set_deadline(reading_, limits().header_time);
      begun = true;
    }
    auto got = co_await fill(limits().header_bytes, begun ? 0ms : idle_time());
    if (!got || *got == 0) {
      bool slow = reading_.late && begun;
      reading_.late = false;
      if (slow) co_await refuse(408, "timeout", "the head of the request took too long");
      co_return false;
    }
  }
  clear_deadline(reading_);
  parser_.reset();
  auto parsed = parser_.head(buffer_.view().substr(0, scan.size()));
  buffer_.consume(scan.size());
  if (!parsed) {
    const Error& error = parsed.error();
    int status = error.code == Code::exhausted ? 431 : error.code == Code::unsupported ? 501 : 400;
    co_await refuse(status, status == 431 ? "headers_too_large" : to_string(error.code), error.message);
    co_return false;
  }
  co_return true;
}

// Fills the request's part of the exchange. What fails here is refused with a 400 and the connection's end.
Result<void> Connection::understand(Exchange::State& s) {
  std::string_view target = parser_.target, host = find_field(parser_.fields, "Host");
  for (std::string_view scheme : {"http://", "https://"}) {
    if (target.size() > scheme.size() && equal_nocase(target.substr(0, scheme.size()), scheme)) {
      target.remove_prefix(scheme.size());
      size_t slash = target.find_first_of("/?");
      // Two names for one request are one too many.
      if (!equal_nocase(target.substr(0, slash), host)) return fail(Code::invalid, "the target and Host disagree");
      target = slash == target.npos ? std::string_view("/") : target.substr(slash);
    }
  }
  if (!target.starts_with('/') && !(target == "*" && parser_.method == "OPTIONS")) {
    return fail(Code::invalid, "the target of a request is a path");
  }
  s.target = target;
  size_t question = target.find('?');
  s.path = target.substr(0, question);
  s.query_text = question == target.npos ? std::string_view() : target.substr(question + 1);
  if (!s.query_text.empty()) {
    ISOLA_TRY(s.queries, parse_query(s.query_text));
  }
  if (!host.empty()) {
    ISOLA_TRY(auto at, parse_host_port(host, uint16_t{0}));
    s.host = std::move(at.first);
    for (char& c : s.host) c = lower(c);
    if (s.host.ends_with('.')) s.host.pop_back();
  }
  if (std::string_view expect = find_field(parser_.fields, "Expect"); !expect.empty()) {
    if (!equal_nocase(expect, "100-continue")) return fail(Code::unsupported, "this expectation cannot be met");
    s.expects_continue = parser_.version == 11 && !parser_.done();
  }
  std::string_view coding = find_field(parser_.fields, "Content-Encoding");
  if (!coding.empty() && !equal_nocase(coding, "identity")) {
    if (!equal_nocase(coding, "gzip") && !equal_nocase(coding, "x-gzip") && !equal_nocase(coding, "deflate")) {
      s.body_status = 415;  // raised when somebody reads it: a proxy may want it as it is
    } else {
      s.inflater = std::make_unique<Inflater>();
    }
  }
  return {};
}

Task<bool> Connection::serve_one() {
  Exchange exchange(*this);
  Exchange::State& s = exchange.state();
  s.began = Clock::now();
  s.request_id = request_id(find_field(parser_.fields, "X-Request-Id"));
  s.body_limit = limits().body_bytes;
  keep_ = parser_.keep_alive;
  write_time_.reset();
  if (auto understood = understand(s); !understood) {
    const Error& error = understood.error();
    co_await refuse(error.code == Code::unsupported ? 417 : 400, to_string(error.code), error.message);
    co_return false;
  }
  exchange_ = &exchange;
  co_await core_->router.dispatch(exchange);
  exchange_ = nullptr;
  if (s.taken || s.aborted) {
    log(s);
    co_return false;
  }
  Result<void> sent;
  if (s.pending) {
    sent = co_await send_reply(s);
  } else if (s.begun && !s.finished) {
    sent = co_await send_end(s);
  }
  log(s);
  if (!sent || s.broken || cut_) co_return false;
  if (keep_ && !parser_.done()) {
    bool drained = co_await drain(s);
    if (!drained) co_return false;
  }
  if (keep_) co_return true;
  co_await linger(!parser_.done() || !buffer_.empty());
  co_return false;
}

Task<bool> Connection::drain(Exchange::State& s) {
  size_t left = kDrain;
  set_deadline(reading_, limits().drain_time);  // of all of it
  buffer_.consume(std::exchange(s.held, 0));
  while (!parser_.done()) {
    auto piece = parser_.body(buffer_.view());
    if (!piece) co_return false;
    buffer_.consume(piece->used);
    if (piece->data.size() > left) co_return false;
    left -= piece->data.size();
    if (piece->used > 0) continue;
    auto got = co_await fill(kBodyBuffer, 0ms);
    if (!got || *got == 0) co_return false;
  }
  clear_deadline(reading_);
  co_return true;
}

// For requests that never became an exchange.
Task<void> Connection::refuse(int status, std::string_view code, std::string_view message) {
  Exchange exchange(*this);
  Exchange::State& s = exchange.state();
  s.began = Clock::now();
  s.request_id = request_id({});
  parser_.method = parser_.target = {};
  keep_ = false;
  ErrorReply reply{status, std::string(code), std::string(message), {}};
  plain_dress(exchange, reply);
  auto sent = co_await send_reply(s);
  log(s);
  if (sent) co_await linger(true);
}

// Our last word is out. Closing now, with bytes of the client unread, would reset the connection and could take that
// word from the client: so say that it was the last and listen a little.
Task<void> Connection::linger(bool unread) {
  error_code ec;
  set_deadline(reading_, 2s);
  if (transport_.tls) {
    co_await transport_.tls->async_shutdown(kUse);
  }
  transport_.socket.shutdown(Transport::Socket::shutdown_send, ec);
  buffer_.consume(buffer_.size());
  for (size_t seen = 0; unread && seen < kLinger && !reading_.late && !cut_;) {
    auto room = buffer_.prepare(kBodyBuffer);
    auto [failed, n] = co_await transport_.socket.async_read_some(asio::buffer(room.data(), room.size()), kUse);
    if (failed) break;
    seen += n;
  }
  clear_deadline(reading_);
}

Task<void> Connection::turn_away(std::shared_ptr<Connection> self) {
  self->lane_.turned_away++;
  // Under TLS nobody could read it before a handshake, and that is what a full server has no time for.
  if (!self->core_->tls_now()) {
    std::string body = error_body({503, "unavailable", "the server has as many connections as it can take", {}}, "");
    std::string text = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: {}\r\nRetry-After: 1\r\n"
        "Connection: close\r\n\r\n{}",
        body.size(), body);
    auto sent = co_await self->send(text);
    if (sent) co_await self->linger(true);
  }
  self->lane_.turned_away--;
  self->stop_clock();
}

void Connection::log(Exchange::State& s) {
  if (!lane_.access_log) return;
  lane_.access_log.add({.method = std::string(parser_.method),
                        .path = std::string(s.path),
                        .peer = peer_,
                        .request_id = s.request_id,
                        .host = s.host,
                        .status = s.aborted && !s.head_sent ? 0 : s.status,
                        .bytes_in = s.body_raw,
                        .bytes_out = s.sent,
                        .ended = std::chrono::system_clock::now(),
                        .duration = Clock::now() - s.began});
}

void Connection::retire() {
  retiring_ = true;
  error_code ec;
  if (!busy_) transport_.socket.cancel(ec);
}

void Connection::cut() {
  cut_ = true;
  error_code ec;
  transport_.socket.shutdown(Transport::Socket::shutdown_both, ec);
  transport_.socket.cancel(ec);
  stop_clock();
}

void Connection::reset() {
  cut_ = true;
  error_code ec;
  transport_.socket.set_option(asio::socket_base::linger(true, 0), ec);
  transport_.socket.close(ec);
  stop_clock();
}

}  // namespace isola::http
