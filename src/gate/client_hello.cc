#include "gate/client_hello.h"

#include <algorithm>

#include "gate/name.h"

namespace isola::gate {

namespace {

constexpr uint8_t kHandshakeRecord = 22, kClientHello = 1;
constexpr size_t kRecordHead = 5, kMessageHead = 4, kMaxRecord = (1 << 14) + 256;
constexpr size_t kMaxRecords = 4096;  // one byte a record is silly, but a hello has a few thousand bytes at most
constexpr uint16_t kServerName = 0, kAlpn = 16, kEch = 0xfe0d, kEsni = 0xffce;

// Big-endian fields of a bounded text; sticky when one does not fit.
class HelloFields {
 public:
  explicit HelloFields(std::string_view in) : in_(in) {}
  size_t number(size_t bytes) {
    if (in_.size() < bytes) return ok_ = false, in_ = {}, 0;
    size_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value = value << 8 | static_cast<uint8_t>(in_[i]);
    in_.remove_prefix(bytes);
    return value;
  }
  std::string_view take(size_t size) {
    if (in_.size() < size) return ok_ = false, in_ = {}, std::string_view();
    auto out = in_.substr(0, size);
    in_.remove_prefix(size);
    return out;
  }
  std::string_view vector(size_t length_bytes) { return take(number(length_bytes)); }
  bool more() const { return ok_ && !in_.empty(); }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && in_.empty(); }

 private:
  std::string_view in_;
  bool ok_ = true;
};

// A server may forgive what comes before a hello (an alert, say), look at no version in a record's head, and take a
// hello in the form of SSL 2, which cannot carry a name: so whatever some TLS server could understand is TLS.
bool could_be_tls(std::string_view head) {
  auto at = [&](size_t i) { return static_cast<uint8_t>(head[i]); };
  if (at(0) >= 0x80) return (head.size() < 3 || at(2) == kClientHello) && (head.size() < 4 || at(3) <= 3);
  return at(0) >= 20 && at(0) <= 24;
}

const char* read_server_name(std::string_view body, ClientHello& hello) {
  HelloFields outer(body);
  HelloFields list(outer.vector(2));
  if (!outer.done()) return "an unreadable server name";
  size_t kind = list.number(1);
  auto name = list.vector(2);
  if (!list.done() || kind != 0) return "not exactly one server name";
  // A dot at the end is not allowed here, and normal_name() would take it away.
  auto normal = normal_name(name);
  if (!normal || name.ends_with('.')) return "a server name with odd characters";
  hello.server_name = std::move(*normal);
  return nullptr;
}

const char* read_alpn(std::string_view body, ClientHello& hello) {
  HelloFields outer(body);
  HelloFields list(outer.vector(2));
  if (!outer.done()) return "an unreadable list of protocols";
  while (list.more()) {
    auto protocol = list.vector(1);
    if (protocol.empty() || hello.alpn.size() == 16) return "an unreadable list of protocols";
    hello.alpn.emplace_back(protocol);
  }
  return list.ok() ? nullptr : "an unreadable list of protocols";
}

const char* read_hello(std::string_view body, ClientHello& hello) {
  HelloFields in(body);
  size_t version = in.number(2);
  in.take(32);  // random
  auto session = in.vector(1);
  auto suites = in.vector(2);
  auto compressions = in.vector(1);
  if (!in.ok() || version >> 8 != 3 || session.size() > 32 || suites.empty() || suites.size() % 2 != 0 ||
      compressions.empty())
    return "an unreadable hello";
  if (in.done()) return nullptr;  // no extensions: TLS 1.0 could
  HelloFields list(in.vector(2));
  if (!in.done()) return "bytes behind the extensions";
  std::vector<uint16_t> seen;
  while (list.more()) {
    auto kind = static_cast<uint16_t>(list.number(2));
    auto content = list.vector(2);
    if (!list.ok()) break;
    if (seen.size() == 512) return "too many extensions";
    seen.push_back(kind);
    const char* problem = nullptr;
    if (kind == kServerName) problem = read_server_name(content, hello);
    if (kind == kAlpn) problem = read_alpn(content, hello);
    if (kind == kEch || kind == kEsni) hello.ech = true;
    if (problem) return problem;
  }
  if (!list.ok()) return "an unreadable extension";
  std::sort(seen.begin(), seen.end());
  if (std::adjacent_find(seen.begin(), seen.end()) != seen.end()) return "an extension twice";
  return nullptr;
}

}  // namespace

ClientHelloReader::State ClientHelloReader::bad(const char* problem) {
  problem_ = problem;
  return state_ = State::bad;
}

ClientHelloReader::State ClientHelloReader::feed(std::string_view bytes) {
  read(bytes);
  unread_ = bytes.size();
  return state_;
}

ClientHelloReader::State ClientHelloReader::read(std::string_view& bytes) {
  while (state_ == State::more && !bytes.empty()) {
    if (record_left_ == 0) {
      head_.push_back(bytes[0]);
      bytes.remove_prefix(1);
      auto at = [this](size_t i) { return static_cast<uint8_t>(head_[i]); };
      if (records_ == 0 && !could_be_tls(head_)) return state_ = State::not_tls;
      if (head_.size() == 2 && at(0) != kHandshakeRecord && at(0) < 0x80)
        return bad(records_ == 0 ? "another record before the hello" : "another record inside the hello");
      if (head_.size() == 2 && at(1) != 3 && at(0) < 0x80) return bad("an odd version");
      if (head_.size() == 4 && at(0) >= 0x80) return bad("a hello in the form of SSL 2");
      if (head_.size() < kRecordHead) continue;
      record_left_ = size_t{at(3)} << 8 | at(4);
      head_.clear();
      if (record_left_ == 0 || record_left_ > kMaxRecord) return bad("a record of odd size");
      if (++records_ > kMaxRecords) return bad("too many records");
      continue;
    }
    size_t take = std::min(record_left_, bytes.size());
    if (message_.size() + take > kMaxHello + kMaxRecord) return bad("a hello that is too large");
    message_.append(bytes.substr(0, take));
    bytes.remove_prefix(take);
    record_left_ -= take;
    parse();
  }
  return state_;
}

ClientHelloReader::State ClientHelloReader::parse() {
  if (message_[0] != kClientHello) return bad("another message instead of a hello");
  if (message_.size() < kMessageHead) return state_;
  HelloFields head(std::string_view(message_).substr(1, 3));
  size_t size = head.number(3);
  if (size > kMaxHello) return bad("a hello that is too large");
  if (message_.size() < kMessageHead + size) return state_;
  // Nothing may follow before the server has spoken, except what belongs to early data in records of their own.
  if (message_.size() > kMessageHead + size || record_left_ > 0) return bad("bytes behind the hello");
  if (const char* problem = read_hello(std::string_view(message_).substr(kMessageHead), hello_)) return bad(problem);
  message_ = std::string();
  return state_ = State::done;
}

}  // namespace isola::gate
