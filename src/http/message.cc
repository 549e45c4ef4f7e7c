#include "http/message.h"

#include <algorithm>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <charconv>
#include <cstring>

#include "http/text.h"

namespace isola::http {

namespace beast = boost::beast;

std::string_view find_field(const std::vector<Field>& fields, std::string_view name) {
  for (const Field& field : fields) {
    if (equal_nocase(field.name, name)) return field.value;
  }
  return {};
}

HeadScanner::State HeadScanner::feed(std::string_view buffer) {
  while (seen_ < buffer.size()) {
    const void* found = std::memchr(buffer.data() + seen_, '\n', buffer.size() - seen_);
    if (!found) {
      seen_ = buffer.size();
      break;
    }
    size_t lf = static_cast<size_t>(static_cast<const char*>(found) - buffer.data());
    if (lf == line_ || buffer[lf - 1] != '\r') {
      why_ = "a line of the head does not end in CR LF";
      return State::bad;
    }
    if (lf - 1 == line_) {
      size_ = lf + 1;
      return State::complete;
    }
    if (line_ > 0 && (buffer[line_] == ' ' || buffer[line_] == '\t')) {
      why_ = "a line of the head is folded";
      return State::bad;
    }
    line_ = seen_ = lf + 1;
  }
  return State::more;
}

namespace {

using StringView = beast::string_view;
std::string_view view(StringView s) { return {s.data(), s.size()}; }

// Beast finds the parts; we keep them as views into the head's text, without a copy of each.
template <bool is_request>
class Parser : public beast::http::basic_parser<is_request> {
 public:
  explicit Parser(MessageParser<is_request>& to) : to_(to) {}
  std::string_view data;

 private:
  using error_code = beast::error_code;
  void on_request_impl(beast::http::verb, StringView method, StringView target, int version, error_code&) override {
    to_.method = view(method);
    to_.target = view(target);
    to_.version = version;
  }
  void on_response_impl(int status, StringView reason, int version, error_code&) override {
    to_.status = status;
    to_.reason = view(reason);
    to_.version = version;
  }
  void on_field_impl(beast::http::field, StringView name, StringView value, error_code& ec) override {
    if (in_body_) return;  // trailers are read over: a header that comes after the checks of headers is a trick
    if (to_.fields.size() == kMaxFields) {
      ec = beast::http::error::header_limit;
      return;
    }
    to_.fields.push_back({view(name), view(value)});
  }
  void on_header_impl(error_code&) override { in_body_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  size_t on_body_impl(StringView body, error_code&) override {
    data = view(body);
    return body.size();
  }
  void on_chunk_header_impl(std::uint64_t, StringView, error_code&) override {}
  size_t on_chunk_body_impl(std::uint64_t, StringView body, error_code&) override {
    data = view(body);
    return body.size();
  }
  void on_finish_impl(error_code&) override {}

  MessageParser<is_request>& to_;
  bool in_body_ = false;
};

}  // namespace

template <bool is_request>
struct MessageParser<is_request>::Impl {
  std::optional<Parser<is_request>> parser;
};

template <bool is_request>
MessageParser<is_request>::MessageParser() : impl_(std::make_unique<Impl>()) {
  reset();
}
template <bool is_request>
MessageParser<is_request>::~MessageParser() = default;

template <bool is_request>
void MessageParser<is_request>::reset() {
  impl_->parser.emplace(*this);
  impl_->parser->body_limit(boost::none);
  method = target = reason = {};
  status = 0;
  version = 11;
  fields.clear();
  length.reset();
  chunked = keep_alive = false;
}

template <bool is_request>
void MessageParser<is_request>::no_body() {
  impl_->parser->skip(true);
}

template <bool is_request>
Result<void> MessageParser<is_request>::head(std::string_view text) {
  text_.assign(text);
  auto& parser = *impl_->parser;
  parser.header_limit(static_cast<uint32_t>(text_.size() + 1));
  beast::error_code ec;
  size_t used = parser.put(boost::asio::buffer(text_), ec);
  if (ec == beast::http::error::header_limit) return fail(Code::exhausted, "the head has too many fields");
  if (ec == beast::http::error::bad_version) return fail(Code::invalid, "only HTTP/1.0 and HTTP/1.1 are spoken here");
  if (ec) return fail(Code::invalid, "the head is malformed: " + ec.message());
  if (used != text_.size() || !parser.is_header_done()) return fail(Code::invalid, "the head is malformed");

  int lengths = 0, codings = 0, hosts = 0;
  std::string_view coding, length_text;
  for (const Field& field : fields) {
    if (equal_nocase(field.name, "Content-Length")) {
      lengths++;
      length_text = field.value;
    } else if (equal_nocase(field.name, "Transfer-Encoding")) {
      codings++;
      coding = field.value;
    } else if (equal_nocase(field.name, "Host")) {
      hosts++;
    }
  }
  if (lengths > 1) return fail(Code::invalid, "the head has more than one Content-Length");
  if (codings > 1) return fail(Code::invalid, "the head has more than one Transfer-Encoding");
  if (lengths && codings) return fail(Code::invalid, "the head has both Content-Length and Transfer-Encoding");
  if (lengths) {
    uint64_t value = 0;
    auto [end, bad] = std::from_chars(length_text.data(), length_text.data() + length_text.size(), value);
    if (bad != std::errc() || end != length_text.data() + length_text.size() || length_text.size() > 19) {
      return fail(Code::invalid, "Content-Length is no number");
    }
    length = value;
  }
  if (codings) {
    if (version < 11) return fail(Code::invalid, "HTTP/1.0 knows no Transfer-Encoding");
    if (!equal_nocase(coding, "chunked"))
      return fail(Code::unsupported, "the only Transfer-Encoding understood is chunked");
    chunked = true;
  }
  keep_alive = parser.keep_alive();
  if constexpr (is_request) {
    if (!is_token(method)) return fail(Code::invalid, "the method is no token");
    if (hosts > 1 || (version == 11 && hosts == 0)) return fail(Code::invalid, "a request has exactly one Host");
    for (char c : target) {
      if (c <= ' ' || c >= 127 || c == '#') return fail(Code::invalid, "the target has a character that none may have");
    }
  }
  return {};
}

template <bool is_request>
Result<typename MessageParser<is_request>::Piece> MessageParser<is_request>::body(std::string_view input) {
  auto& parser = *impl_->parser;
  Piece piece;
  while (!parser.is_done() && piece.used < input.size()) {
    parser.data = {};
    beast::error_code ec;
    std::string_view rest = input.substr(piece.used);
    piece.used += parser.put(boost::asio::const_buffer(rest.data(), rest.size()), ec);
    if (ec == beast::http::error::need_more) break;
    if (ec) return fail(Code::invalid, "the body is malformed: " + ec.message());
    if (!parser.data.empty()) {
      piece.data = parser.data;
      break;
    }
  }
  return piece;
}

template <bool is_request>
Result<void> MessageParser<is_request>::end_of_input() {
  if (done()) return {};
  beast::error_code ec;
  impl_->parser->put_eof(ec);
  if (ec) return fail(Code::unavailable, "the connection ended in the middle of a message");
  return {};
}

template <bool is_request>
bool MessageParser<is_request>::done() const {
  return impl_->parser->is_done();
}

template class MessageParser<true>;
template class MessageParser<false>;

}  // namespace isola::http
