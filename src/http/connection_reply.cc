// The body of a request as pieces, and the reply as bytes.
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <charconv>
#include <ctime>

#include "http/connection.h"
#include "http/encoding.h"

namespace isola::http {

namespace {

constexpr size_t kSmall = 1 << 10;    // smaller replies are not worth compressing
constexpr size_t kLarge = 1 << 20;    // larger ones take long enough for others to wait: they go out in pieces
constexpr size_t kPiece = 128 << 10;  // of those: about a millisecond of packing

// "Sun, 06 Nov 1994 08:49:37 GMT", made once a second.
std::string_view http_date() {
  thread_local std::time_t last = -1;
  thread_local char text[32];
  thread_local size_t size = 0;
  timespec now;
  ::clock_gettime(CLOCK_REALTIME_COARSE, &now);
  if (now.tv_sec != last) {
    last = now.tv_sec;
    tm parts;
    ::gmtime_r(&last, &parts);
    size = ::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts);
  }
  return {text, size};
}

void put_number(std::string& out, uint64_t number) {
  char digits[20];
  auto [end, ec] = std::to_chars(digits, digits + sizeof digits, number);
  out.append(digits, end);
}

void put_chunk_size(std::string& out, size_t size) {
  char digits[16];
  auto [end, ec] = std::to_chars(digits, digits + sizeof digits, size, 16);
  out.append(digits, end).append("\r\n");
}

bool bodyless(int status) { return status < 200 || status == 204 || status == 304; }

}  // namespace

Task<Result<std::string_view>> Connection::body_some(Exchange::State& s) {
  auto failed = [&](Error error, int status) -> std::unexpected<Error> {
    s.body_failed = true;
    s.body_status = status;
    keep_ = false;
    return std::unexpected(std::move(error));
  };
  if (s.body_failed) co_return fail(Code::invalid, "the body could not be read");
  if (s.body_status) co_return failed({Code::unsupported, "this Content-Encoding is not understood"}, s.body_status);
  if (s.taken || s.aborted) co_return fail(Code::invalid, "the connection was handed over");
  if (s.body_raw == 0 && parser_.length && *parser_.length > s.body_limit) {
    co_return failed({Code::invalid, "the body is larger than this call takes"}, 413);
  }
  if (s.expects_continue) {
    s.expects_continue = false;
    auto sent = co_await send("HTTP/1.1 100 Continue\r\n\r\n");
    if (!sent) co_return failed(sent.error(), 400);
  }
  std::string_view raw;
  for (;;) {
    // What zlib still holds, or has not seen yet, comes before new bytes.
    if (s.inflater) {
      auto piece = s.inflater->feed(s.to_inflate);
      if (!piece) co_return failed(piece.error(), 400);
      s.to_inflate.remove_prefix(piece->used);
      if (!piece->data.empty()) {
        s.body_decoded += piece->data.size();
        if (s.body_decoded > s.body_limit)
          co_return failed({Code::invalid, "the body is larger than this call takes"}, 413);
        co_return piece->data;
      }
      if (piece->used > 0) continue;
    }
    buffer_.consume(std::exchange(s.held, 0));
    if (parser_.done()) {
      if (s.inflater) {
        if (auto ended = s.inflater->end(); !ended) co_return failed(ended.error(), 400);
      }
      co_return std::string_view();
    }
    auto piece = parser_.body(buffer_.view());
    if (!piece) co_return failed(piece.error(), 400);
    if (!piece->data.empty()) {
      s.held = piece->used;
      raw = piece->data;
      s.body_raw += raw.size();
      if (s.body_raw > s.body_limit) co_return failed({Code::invalid, "the body is larger than this call takes"}, 413);
      if (!s.inflater) co_return raw;
      s.to_inflate = raw;
      continue;
    }
    buffer_.consume(piece->used);
    if (parser_.done() || piece->used > 0) continue;
    auto got = co_await fill(kBodyBuffer, s.body_time.value_or(limits().body_time));
    if (!got) {
      int status = got.error().code == Code::timeout ? 408 : 400;
      reading_.late = false;
      co_return failed(got.error(), status);
    }
    if (*got == 0) {
      s.broken = true;
      co_return failed({Code::unavailable, "the client left in the middle of the body"}, 400);
    }
  }
}

// Whether another request may follow on this connection.
void Connection::decide_keep(Exchange::State& s) {
  if (retiring_ || s.body_failed) keep_ = false;
  if (!parser_.done() && keep_) {
    bool little = parser_.length && *parser_.length - s.body_raw <= kBodyBuffer;
    if (s.expects_continue || !little) keep_ = false;
  }
}

void Connection::put_head(Exchange::State& s) {
  decide_keep(s);
  out_.clear();
  if (!s.raw_head.empty()) {
    out_ += s.raw_head;
  } else {
    out_ += "HTTP/1.1 ";
    put_number(out_, static_cast<uint64_t>(s.status));
    out_ += ' ';
    out_ += reason_of(s.status);
    out_ += "\r\nDate: ";
    out_ += http_date();
    out_ += "\r\n";
    if (!s.type.empty()) out_.append("Content-Type: ").append(s.type).append("\r\n");
  }
  if (!bodyless(s.status)) {
    if (s.length) {
      out_ += "Content-Length: ";
      put_number(out_, *s.length);
      out_ += "\r\n";
    } else if (parser_.version == 11) {
      s.chunks = true;
      out_ += "Transfer-Encoding: chunked\r\n";
    } else {
      keep_ = false;  // HTTP/1.0: the end of the connection is the end of the body
    }
  }
  out_.append("X-Request-Id: ").append(s.request_id).append("\r\n");
  if (!keep_) {
    out_ += "Connection: close\r\n";
  } else if (parser_.version == 10) {
    out_ += "Connection: keep-alive\r\n";
  }
  out_ += s.headers;
  out_ += "\r\n";
  s.head_sent = true;
}

// Whether what this reply has of a body is to be packed; says in its head what was decided.
bool Connection::decide_packing(Exchange::State& s) {
  if (!compressible(s.type) || !s.raw_head.empty() || s.status == 206 || bodyless(s.status)) return false;
  if (s.headers.find("Content-Encoding:") != s.headers.npos) return false;
  s.headers += "Vary: Accept-Encoding\r\n";
  return accepts_gzip(find_field(parser_.fields, "Accept-Encoding"));
}

Task<Result<void>> Connection::send_reply(Exchange::State& s) {
  Result<void> sent = co_await send_whole(s);
  std::string().swap(s.body);  // its handler may have much to do yet, and an assignment would keep the memory
  s.body_share.reset();
  co_return sent;
}

Task<Result<void>> Connection::send_whole(Exchange::State& s) {
  bool head_only = parser_.method == "HEAD";
  bool large = s.body.size() > kLarge;
  // Nobody waits for a large one to be packed whose head alone was asked for.
  if (s.body.size() > kSmall && !(large && head_only) && decide_packing(s)) {
    if (large) {
      Result<void> sent = co_await send_packed(s);
      co_return sent;
    }
    if (auto packed = gzip(s.body); packed && packed->size() < s.body.size()) {
      s.body = std::move(*packed);
      s.headers += "Content-Encoding: gzip\r\n";
    }
  }
  s.length = s.body.size();
  put_head(s);
  s.pending = false;
  s.finished = true;
  std::string_view body = head_only || bodyless(s.status) ? std::string_view() : std::string_view(s.body);
  Result<void> sent = co_await send(out_, body);
  if (sent) {
    s.sent = body.size();
  } else {
    s.broken = true;
  }
  co_return sent;
}

// For replies that cannot become what their head says: an orderly end would be a lie.
std::unexpected<Error> Connection::give_up(Exchange::State& s, Error error) {
  reset();
  s.aborted = true;
  return std::unexpected(std::move(error));
}

// A large reply as a stream, packed piece by piece, with turns for others between the pieces.
Task<Result<void>> Connection::send_packed(Exchange::State& s) {
  s.pending = false;
  s.begun = true;
  s.packer = std::make_unique<Deflater>();
  s.headers += "Content-Encoding: gzip\r\n";
  for (std::string_view rest = s.body; !rest.empty(); rest.remove_prefix(std::min(kPiece, rest.size()))) {
    auto packed = s.packer->feed(rest.substr(0, kPiece));
    if (!packed) co_return give_up(s, std::move(packed).error());
    Result<void> sent = co_await send_chunk(s, *packed);
    if (!sent) co_return sent;
    co_await boost::asio::post(transport_.get_executor(), boost::asio::use_awaitable);
  }
  Result<void> sent = co_await send_end(s);
  co_return sent;
}

Task<Result<void>> Connection::send_piece(Exchange::State& s, std::string_view bytes) {
  if (s.begun && !s.head_sent && !s.length && decide_packing(s)) {
    s.packer = std::make_unique<Deflater>(1, Deflater::Window::small);
    s.headers += "Content-Encoding: gzip\r\n";
  }
  bool packs = s.packer && !bytes.empty() && parser_.method != "HEAD";
  return packs ? send_packed_piece(s, bytes) : send_chunk(s, bytes);
}

// Each piece is an event that somebody waits for: it is packed to its end, so that it can be read when it comes.
Task<Result<void>> Connection::send_packed_piece(Exchange::State& s, std::string_view bytes) {
  auto packed = s.packer->feed_all(bytes);
  if (!packed) co_return give_up(s, std::move(packed).error());
  Result<void> sent = co_await send_chunk(s, *packed);
  co_return sent;
}

// Bytes of a streamed reply as they go out; the head before the first.
Task<Result<void>> Connection::send_chunk(Exchange::State& s, std::string_view bytes) {
  if (!s.begun || s.finished || s.broken || s.aborted) co_return fail(Code::invalid, "this reply takes no more bytes");
  out_.clear();
  if (!s.head_sent) {
    put_head(s);
    // A reader that lags shows here, not in megabytes of socket buffer. Of a body whose length is known nobody waits
    // for the newest piece: there fewer wake-ups count.
    int ahead = s.length ? 1 << 20 : 128 << 10;
    (void)::setsockopt(transport_.socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &ahead, sizeof ahead);
  }
  if (parser_.method == "HEAD") {
    // The head was all that was asked for: whoever has more to write, perhaps for ever, may stop.
    s.finished = true;
    if (auto sent = co_await send(out_); !sent) s.broken = true;
    co_return fail(Code::unavailable, "only the head of this reply was asked for");
  }
  if (bodyless(s.status)) bytes = {};
  if (s.length && bytes.size() > *s.length - s.sent)
    co_return give_up(s, {Code::internal, "a reply outgrew its Content-Length"});
  std::string_view tail;
  if (s.chunks && !bytes.empty()) {
    put_chunk_size(out_, bytes.size());
    tail = "\r\n";
  }
  s.sent += bytes.size();
  Result<void> sent = co_await send(out_, bytes, tail);
  if (!sent) s.broken = true;
  co_return sent;
}

Task<Result<void>> Connection::send_end(Exchange::State& s) {
  if (!s.begun || s.finished || s.broken || s.aborted) co_return fail(Code::invalid, "this reply is over");
  out_.clear();
  if (!s.head_sent) put_head(s);
  s.finished = true;
  bool head_only = parser_.method == "HEAD" || bodyless(s.status);
  if (s.length && s.sent < *s.length && !head_only)
    co_return give_up(s, {Code::internal, "a reply fell short of its Content-Length"});
  if (s.packer && !head_only) {
    auto last = s.packer->finish();
    if (!last) co_return give_up(s, std::move(last).error());
    s.sent += last->size();
    if (s.chunks) put_chunk_size(out_, last->size());
    out_ += *last;
    if (s.chunks) out_ += "\r\n";
  }
  if (s.chunks && !head_only) out_ += "0\r\n\r\n";
  Result<void> sent = co_await send(out_);
  if (!sent) s.broken = true;
  co_return sent;
}

}  // namespace isola::http
