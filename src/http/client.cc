#include "http/client.h"

#include <fmt/format.h>
#include <poll.h>

#include <vector>

#include "http/message.h"
#include "http/text.h"

namespace isola::http {

namespace {

using std::chrono::milliseconds;

constexpr size_t kClientPiece = 64 << 10;
constexpr size_t kMaxHead = 256 << 10;

bool clean(const Pairs& headers) {
  for (const auto& [name, value] : headers) {
    if (!is_token(name)) return false;
    for (char c : value) {
      if ((static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 127) return false;
    }
  }
  return true;
}

// `ours` when the source failed, not the connection.
Result<void> send_source(BlockingStream& stream, const ClientRequest& request, milliseconds time, bool& ours) {
  std::vector<char> piece(kClientPiece);
  uint64_t sent = 0;
  for (;;) {
    ours = true;
    ISOLA_TRY(size_t n, request.source(piece));
    std::string_view bytes(piece.data(), n);
    sent += n;
    if (request.length) {
      if (sent > *request.length) return fail(Code::invalid, "the source gave more than its length");
      if (n == 0 && sent < *request.length) return fail(Code::invalid, "the source gave less than its length");
      ours = false;
      if (n == 0) return {};
      ISOLA_CHECK(stream.write(bytes, time));
    } else {
      ours = false;
      std::string chunk = fmt::format("{:x}\r\n", n);
      chunk.append(bytes).append("\r\n");
      ISOLA_CHECK(stream.write(chunk, time));
      if (n == 0) return {};
    }
  }
}

}  // namespace

std::string_view ClientReply::header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (equal_nocase(key, name)) return value;
  }
  return {};
}

Client::Client(Url url, ClientOptions options) : url_(std::move(url)), options_(std::move(options)) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

void Client::header(std::string name, std::string value) { headers_.emplace_back(std::move(name), std::move(value)); }

Result<ClientReply> Client::send(const ClientRequest& request) {
  if (!is_token(request.method) || !clean(request.headers) || !clean(headers_)) {
    return fail(Code::invalid, "the request has a header or method that none may have");
  }
  for (char c : request.target) {
    if (c <= ' ' || c == 127) return fail(Code::invalid, "the target has a space or control character");
  }
  if (stream_) {
    // Nothing is due on a kept connection: if it is readable, that is its end.
    pollfd p{stream_->fd(), POLLIN, 0};
    if (::poll(&p, 1, 0) != 0) stream_.reset();
  }
  bool reused = stream_ != nullptr;
  bool any_reply = false;
  auto reply = attempt(request, any_reply);
  if (!reply) stream_.reset();
  // A kept connection may end just as it is used. What does no harm twice is tried again.
  bool harmless =
      request.method == "GET" || request.method == "HEAD" || request.method == "PUT" || request.method == "DELETE";
  if (!reply && reused && harmless && !any_reply && !request.source && reply.error().code != Code::timeout) {
    reply = attempt(request, any_reply);
    if (!reply) stream_.reset();
  }
  return reply;
}

Result<ClientReply> Client::attempt(const ClientRequest& request, bool& any_reply) {
  milliseconds time = request.io_time.value_or(options_.io_time);
  if (time == milliseconds(0)) time = BlockingStream::kForever;
  if (!stream_) {
    ISOLA_TRY(stream_, BlockingStream::connect(url_, options_));
    rest_.clear();
  }
  std::string head = fmt::format("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, request.target, url_.authority());
  auto put = [&](const Pairs& headers) {
    for (const auto& [name, value] : headers) head.append(name).append(": ").append(value).append("\r\n");
  };
  put(headers_);
  put(request.headers);
  if (request.source) {
    head += request.length ? fmt::format("Content-Length: {}\r\n", *request.length) : "Transfer-Encoding: chunked\r\n";
  } else if (!request.body.empty() || request.method == "POST" || request.method == "PUT" ||
             request.method == "PATCH") {
    head += fmt::format("Content-Length: {}\r\n", request.body.size());
  }
  if (!request.body.empty() || request.source) head.append("Content-Type: ").append(request.type).append("\r\n");
  head += "\r\n";
  if (!request.source && request.body.size() < kClientPiece) head += request.body;
  Result<void> sent = stream_->write(head, time);
  if (sent && request.source) {
    bool ours = false;
    sent = send_source(*stream_, request, time, ours);
    if (!sent && ours) return std::unexpected(sent.error());
  } else if (sent && request.body.size() >= kClientPiece) {
    sent = stream_->write(request.body, time);
  }
  // A server that did not want the whole body has said why: its word is better than our broken pipe.
  std::vector<char> piece(kClientPiece);
  auto read = [&]() -> Result<size_t> {
    ISOLA_TRY(size_t n, stream_->read(piece, time));
    rest_.append(piece.data(), n);
    any_reply = any_reply || n > 0;
    return n;
  };
  ResponseParser parser;
  for (;;) {
    HeadScanner scan;
    for (auto state = scan.feed(rest_); state != HeadScanner::State::complete; state = scan.feed(rest_)) {
      if (state == HeadScanner::State::bad || rest_.size() > kMaxHead)
        return fail(Code::corrupt, "the reply is malformed");
      auto n = read();
      if (!n || *n == 0) {
        if (!sent) return std::unexpected(sent.error());
        if (!n) return std::unexpected(n.error());
        return fail(Code::unavailable, "the server closed the connection without a reply");
      }
    }
    parser.reset();
    if (request.method == "HEAD") parser.no_body();
    auto parsed = parser.head(std::string_view(rest_).substr(0, scan.size()));
    rest_.erase(0, scan.size());
    if (!parsed) return fail(Code::corrupt, "the reply is malformed: " + parsed.error().message);
    if (parser.status >= 200) break;
  }
  ClientReply reply{.status = parser.status};
  for (const Field& field : parser.fields) reply.headers.emplace_back(field.name, field.value);
  if (request.on_head) request.on_head(reply);
  bool keep = parser.keep_alive && sent.has_value();
  while (!parser.done()) {
    auto part = parser.body(rest_);
    if (!part) return fail(Code::corrupt, "the reply is malformed: " + part.error().message);
    if (!part->data.empty()) {
      if (request.sink && reply.ok()) {
        ISOLA_CHECK(request.sink(part->data));
      } else {
        if (reply.body.size() + part->data.size() > kMaxBody) return fail(Code::exhausted, "the reply is too large");
        reply.body += part->data;
      }
    }
    rest_.erase(0, part->used);
    if (part->used > 0) continue;
    ISOLA_TRY(size_t n, read());
    if (n == 0) {
      keep = false;
      ISOLA_CHECK(parser.end_of_input());
    }
  }
  if (!keep) stream_.reset();
  return reply;
}

}  // namespace isola::http
