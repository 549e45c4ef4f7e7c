#include "http/websocket_client.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <sys/random.h>

#include "http/message.h"
#include "http/text.h"

namespace isola::http {

namespace {

using std::chrono::milliseconds;

constexpr unsigned char kText = 1, kBinary = 2, kClose = 8, kPing = 9, kPong = 10;

std::string base64(std::string_view bytes) {
  std::string out(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  int n = ::EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                            reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  out.resize(static_cast<size_t>(n));
  return out;
}

// What proves that the server understood the handshake: RFC 6455, 4.2.2.
std::string accept_of(const std::string& key) {
  std::string text = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  ::EVP_Digest(text.data(), text.size(), digest, &size, ::EVP_sha1(), nullptr);
  return base64({reinterpret_cast<char*>(digest), size});
}

Result<std::string> random_bytes(size_t n) {
  std::string out(n, '\0');
  if (::getrandom(out.data(), n, 0) != static_cast<ssize_t>(n)) return sys_error("cannot get random bytes");
  return out;
}

}  // namespace

WebSocketClient::~WebSocketClient() = default;

Result<std::unique_ptr<WebSocketClient>> WebSocketClient::connect(const Url& url, const Pairs& headers,
                                                                  const std::vector<std::string>& subprotocols,
                                                                  const ClientOptions& options) {
  std::unique_ptr<WebSocketClient> self(new WebSocketClient());
  self->options_ = options;
  ISOLA_TRY(self->stream_, BlockingStream::connect(url, options));
  ISOLA_TRY(std::string bytes, random_bytes(16));
  std::string key = base64(bytes);
  std::string head = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
      "Sec-WebSocket-Key: {}\r\n",
      url.target, url.authority(), key);
  if (!subprotocols.empty()) head += fmt::format("Sec-WebSocket-Protocol: {}\r\n", fmt::join(subprotocols, ", "));
  for (const auto& [name, value] : headers) {
    if (!is_token(name) || value.find_first_of("\r\n") != value.npos)
      return fail(Code::invalid, "a header is malformed");
    head.append(name).append(": ").append(value).append("\r\n");
  }
  head += "\r\n";
  ISOLA_CHECK(self->stream_->write(head, options.connect_time));
  HeadScanner scan;
  std::vector<char> piece(16 << 10);
  while (scan.feed(self->in_) != HeadScanner::State::complete) {
    if (self->in_.size() > (64 << 10)) return fail(Code::corrupt, "the reply is malformed");
    ISOLA_TRY(size_t n, self->stream_->read(piece, options.connect_time));
    if (n == 0) return fail(Code::unavailable, "the server closed the connection without a reply");
    self->in_.append(piece.data(), n);
  }
  ResponseParser parser;
  ISOLA_CHECK(parser.head(std::string_view(self->in_).substr(0, scan.size())));
  self->in_.erase(0, scan.size());
  if (parser.status != 101) {
    std::string why = fmt::format("the server answered {} {}", parser.status, parser.reason);
    // Its own words, as far as they came along.
    if (auto body = parser.body(self->in_); body && !body->data.empty())
      why.append(": ").append(body->data.substr(0, 500));
    Code code = parser.status == 404                           ? Code::not_found
                : parser.status == 401 || parser.status == 403 ? Code::denied
                                                               : Code::unavailable;
    return fail(code, why);
  }
  if (find_field(parser.fields, "Sec-WebSocket-Accept") != accept_of(key)) {
    return fail(Code::corrupt, "the server did not understand the WebSocket handshake");
  }
  self->subprotocol_ = find_field(parser.fields, "Sec-WebSocket-Protocol");
  return self;
}

Result<void> WebSocketClient::frame(unsigned char opcode, std::string_view data) {
  ISOLA_TRY(std::string mask, random_bytes(4));
  std::string out;
  out.reserve(data.size() + 14);
  out += static_cast<char>(0x80 | opcode);
  if (data.size() < 126) {
    out += static_cast<char>(0x80 | data.size());
  } else {
    int bytes = data.size() < 65536 ? 2 : 8;
    out += static_cast<char>(0x80 | (bytes == 2 ? 126 : 127));
    for (int i = bytes - 1; i >= 0; i--) out += static_cast<char>(static_cast<uint64_t>(data.size()) >> (8 * i) & 255);
  }
  out += mask;
  for (size_t i = 0; i < data.size(); i++) out += static_cast<char>(data[i] ^ mask[i & 3]);
  milliseconds time = options_.io_time.count() ? options_.io_time : BlockingStream::kForever;
  return stream_->write(out, time);
}

Result<void> WebSocketClient::write(std::string_view data, bool text) { return frame(text ? kText : kBinary, data); }
Result<void> WebSocketClient::ping() { return frame(kPing, {}); }
Result<void> WebSocketClient::close(uint16_t code, std::string_view reason) {
  if (close_sent_) return {};
  close_sent_ = true;
  std::string data{static_cast<char>(code >> 8), static_cast<char>(code & 255)};
  data += reason.substr(0, 123);
  return frame(kClose, data);
}

Result<bool> WebSocketClient::take(WebSocketEvent& event) {
  std::string_view in = std::string_view(in_).substr(used_);
  if (in.size() < 2) return false;
  auto byte = [&](size_t i) { return static_cast<unsigned char>(in[i]); };
  bool last = byte(0) & 0x80;
  unsigned char opcode = byte(0) & 15;
  if ((byte(0) & 0x70) || (byte(1) & 0x80)) return fail(Code::corrupt, "the server sent a malformed frame");
  uint64_t size = byte(1) & 127;
  size_t head = 2;
  if (size >= 126) {
    size_t bytes = size == 126 ? 2 : 8;
    if (in.size() < 2 + bytes) return false;
    size = 0;
    for (size_t i = 0; i < bytes; i++) size = size << 8 | byte(2 + i);
    head += bytes;
  }
  if (size > kMaxMessage || message_.size() + size > kMaxMessage)
    return fail(Code::exhausted, "a message is too large");
  if (in.size() < head + size) return false;
  std::string_view data = in.substr(head, size);
  used_ += head + size;
  switch (opcode) {
    case kPing: ISOLA_CHECK(frame(kPong, data)); break;
    case kPong: break;
    case kClose:
      event.kind = WebSocketEvent::closed;
      if (data.size() >= 2)
        event.code =
            static_cast<uint16_t>(static_cast<unsigned char>(data[0]) << 8 | static_cast<unsigned char>(data[1]));
      if (!close_sent_) ISOLA_CHECK(close(event.code ? event.code : 1000));
      closed_ = true;
      break;
    case 0:
    case kText:
    case kBinary:
      if ((opcode == 0) != within_) return fail(Code::corrupt, "the server sent fragments out of order");
      if (opcode != 0) text_ = opcode == kText;
      message_ += data;
      within_ = !last;
      if (last) {
        event = {.kind = WebSocketEvent::message, .data = std::move(message_), .text = text_};
        message_.clear();
      }
      break;
    default: return fail(Code::corrupt, "the server sent a frame of an unknown kind");
  }
  return true;
}

Result<WebSocketEvent> WebSocketClient::next(milliseconds time) {
  WebSocketEvent event;
  if (closed_) return WebSocketEvent{.kind = WebSocketEvent::closed};
  std::vector<char> piece(64 << 10);
  for (;;) {
    for (bool more = true; more && event.kind == WebSocketEvent::nothing;) {
      ISOLA_TRY(more, take(event));
    }
    in_.erase(0, std::exchange(used_, 0));
    if (event.kind != WebSocketEvent::nothing) return event;
    auto n = stream_->read(piece, time);
    if (!n && n.error().code == Code::timeout) return event;
    if (!n) return std::unexpected(n.error());
    if (*n == 0) {
      closed_ = true;
      return fail(Code::unavailable, "the server ended the connection without a close");
    }
    in_.append(piece.data(), *n);
  }
}

}  // namespace isola::http
