// The bytes of a connection and the clock that watches them.
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "http/connection.h"

namespace isola::http {

namespace asio = boost::asio;
using error_code = boost::system::error_code;
using namespace std::chrono_literals;

namespace {
constexpr size_t kAhead = 64 << 10;  // of pipelined bytes read while an exchange runs
}  // namespace

// One timer per connection, armed rarely: a deadline that moves back only moves a number, and the timer looks at it
// when it fires. Only one that comes closer than the timer arms it anew.
void Connection::set_deadline(Watch& watch, std::chrono::milliseconds time) {
  watch.deadline = Clock::now() + time;
  watch.time = time;
  if (watch.deadline < armed_) arm();
}

void Connection::push(Watch& other) {
  if (other.deadline != kNever) other.deadline = Clock::now() + other.time;
}

void Connection::arm() {
  armed_ = std::min(reading_.deadline, writing_.deadline);
  timer_.expires_at(armed_);
  timer_.async_wait([self = shared_from_this()](error_code ec) {
    if (!ec) self->ring();
  });
}

void Connection::ring() {
  armed_ = kNever;
  auto now = Clock::now();
  bool late = false;
  for (Watch* watch : {&reading_, &writing_}) {
    if (watch->deadline > now) continue;
    watch->deadline = kNever;
    watch->late = late = true;
  }
  if (reading_.deadline != kNever || writing_.deadline != kNever) arm();
  // Ends the waits of both ways; the one that was not late goes on where it can.
  error_code ec;
  if (late) transport_.socket.cancel(ec);
}

// The timer keeps the connection alive, so whoever ends one stops it.
void Connection::stop_clock() {
  reading_.deadline = writing_.deadline = armed_ = kNever;
  timer_.cancel();
}

Task<Result<size_t>> Connection::fill(size_t limit, std::chrono::milliseconds time) {
  auto room = buffer_.prepare(limit);
  if (room.empty()) co_return fail(Code::exhausted, "a part of the message does not fit the buffer");
  if (time > 0ms) set_deadline(reading_, time);
  // One that takes nothing is as good as gone: nothing is read from it either.
  auto late = [this] { return reading_.late || writing_.late; };
  if (late() || cut_) co_return fail(Code::timeout, "the client was too slow");
  auto [ec, n] = co_await transport_.async_read_some(asio::buffer(room.data(), room.size()), kUse);
  if (time > 0ms) clear_deadline(reading_);
  if (late()) co_return fail(Code::timeout, "the client was too slow");
  if (ec == asio::error::eof || ec == asio::ssl::error::stream_truncated) co_return size_t{0};
  if (ec) co_return fail(Code::unavailable, "the client is gone");
  buffer_.commit(n);
  push(writing_);
  co_return n;
}

Task<Result<void>> Connection::send(std::string_view a, std::string_view b, std::string_view c) {
  if (cut_) co_return fail(Code::unavailable, "the connection was cut");
  if (transport_.tls) {
    Result<void> sent = co_await send_tls(a, b, c);
    co_return sent;
  }
  std::array<std::string_view, 3> parts{a, b, c};
  for (;;) {
    std::array<iovec, 3> vec;
    msghdr message{};
    message.msg_iov = vec.data();
    size_t left = 0;
    for (std::string_view part : parts) {
      if (!part.empty()) vec[message.msg_iovlen++] = {const_cast<char*>(part.data()), part.size()};
      left += part.size();
    }
    if (left == 0) co_return Result<void>();
    // Most replies fit into the socket's buffer: no reactor, no timer for those.
    ssize_t n = ::sendmsg(transport_.socket.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) co_return fail(Code::unavailable, "the client is gone");
    if (n < 0) {
      if (writing_.deadline == kNever) set_deadline(writing_, write_time_.value_or(limits().write_time));
      auto [ec] = co_await transport_.socket.async_wait(Transport::Socket::wait_write, kUse);
      if (writing_.late) co_return fail(Code::timeout, "the client does not read");
      if (ec == asio::error::operation_aborted && !cut_) continue;  // the other way was late
      clear_deadline(writing_);
      if (ec || cut_) co_return fail(Code::unavailable, "the client is gone");
      continue;
    }
    push(reading_);
    for (std::string_view& part : parts) {
      size_t used = std::min(part.size(), static_cast<size_t>(n));
      part.remove_prefix(used);
      n -= static_cast<ssize_t>(used);
    }
  }
}

Task<Result<void>> Connection::send_tls(std::string_view a, std::string_view b, std::string_view c) {
  std::string joined;  // one record instead of three, where it is small
  if (a.size() + b.size() + c.size() <= (16 << 10)) {
    joined.append(a).append(b).append(c);
    a = joined;
    b = c = {};
  }
  for (std::string_view part : {a, b, c}) {
    while (!part.empty()) {
      set_deadline(writing_, write_time_.value_or(limits().write_time));
      auto [ec, n] = co_await transport_.tls->async_write_some(asio::buffer(part.data(), part.size()), kUse);
      clear_deadline(writing_);
      if (writing_.late) co_return fail(Code::timeout, "the client does not read");
      if (ec || cut_) co_return fail(Code::unavailable, "the client is gone");
      push(reading_);
      part.remove_prefix(n);
    }
  }
  co_return Result<void>();
}

// Who has ended its side and who has hung up look the same until something is sent: who is there passes over an interim
// answer, and the kernel of who is not resets the connection.
Task<void> Connection::ask_until_gone() {
  using namespace boost::asio::experimental::awaitable_operators;
  constexpr std::string_view kAsk = "HTTP/1.1 100 Continue\r\n\r\n";
  asio::steady_timer next(transport_.get_executor());
  for (auto wait = 1s;; wait = 15s) {
    next.expires_after(wait);
    auto first = co_await (transport_.socket.async_wait(Transport::Socket::wait_error, kUse) || next.async_wait(kUse));
    if (first.index() == 0 || cut_) co_return;
    if (auto [ec] = std::get<1>(first); ec) co_return;
    ssize_t n = ::send(transport_.socket.native_handle(), kAsk.data(), kAsk.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR) co_return;
    if (n >= 0 && static_cast<size_t>(n) < kAsk.size()) co_return cut();  // half an answer: nothing fits behind it
  }
}

Task<void> Connection::gone(Exchange::State& s, Gone when) {
  if (s.taken || s.aborted || cut_) co_return;
  if (parser_.done()) buffer_.consume(std::exchange(s.held, 0));
  if (!parser_.done() && when == Gone::asked) {
    // The end stands behind what is not read, perhaps where the kernel has no room for it either.
    if (!transport_.tls && parser_.version == 11 && !s.begun && !s.finished) {
      co_await ask_until_gone();
      co_return;
    }
    asio::steady_timer look(transport_.get_executor());
    for (;;) {
      look.expires_after(500ms);
      auto [ec] = co_await look.async_wait(kUse);
      pollfd peer{transport_.socket.native_handle(), POLLRDHUP, 0};
      if (ec || cut_ || ::poll(&peer, 1, 0) != 0) co_return;
    }
  }
  if (transport_.tls) {
    // The end is inside the stream: it has to be read. A read that is cancelled half-way leaves it unfit for more, so
    // none begins before there is something to read.
    while (parser_.done() && buffer_.size() < kAhead) {
      auto [failed] = co_await transport_.socket.async_wait(Transport::Socket::wait_read, kUse);
      if (failed || cut_) co_return;
      bool keep = std::exchange(keep_, false);
      auto room = buffer_.prepare(kAhead);
      auto [ec, n] = co_await transport_.tls->async_read_some(asio::buffer(room.data(), room.size()), kUse);
      if (ec && (when != Gone::unreachable || ec != asio::error::eof)) co_return;
      if (ec) break;
      buffer_.commit(n);
      keep_ = keep;
    }
  } else {
    while (parser_.done()) {
      auto [ec] = co_await transport_.socket.async_wait(Transport::Socket::wait_read, kUse);
      if (ec || cut_) co_return;
      auto room = buffer_.prepare(kAhead);
      if (room.empty()) break;
      ssize_t n = ::recv(transport_.socket.native_handle(), room.data(), room.size(), MSG_DONTWAIT);
      if (n < 0 && errno != EAGAIN && errno != EINTR) co_return;
      // What tells the two apart is no part of HTTP/1.0, nor of a reply that has begun.
      bool may_ask = when == Gone::asked && parser_.version == 11 && !s.begun && !s.finished;
      if (n == 0 && may_ask) {
        co_await ask_until_gone();
        co_return;
      }
      if (n == 0 && when != Gone::unreachable) co_return;
      if (n == 0) break;
      if (n > 0) buffer_.commit(static_cast<size_t>(n));  // the next request, early
    }
  }
  co_await transport_.socket.async_wait(Transport::Socket::wait_error, kUse);
}

}  // namespace isola::http
