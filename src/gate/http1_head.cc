#include "gate/http1_head.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "base/field_value.h"

namespace isola::gate {

namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || kOthers.find(c) != kOthers.npos;
  });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// The next line without its CR LF. Bare ones are no ends of lines to some, and ends of lines to others.
Result<std::string_view> next_line(std::string_view& text) {
  size_t end = text.find('\n');
  if (end == text.npos || end == 0 || text[end - 1] != '\r')
    return fail(Code::invalid, "a line of the head does not end in CR LF");
  auto line = text.substr(0, end - 1);
  text.remove_prefix(end + 1);
  if (line.find('\r') != line.npos || line.find('\0') != line.npos)
    return fail(Code::invalid, "a line of the head has a CR or a NUL in it");
  return line;
}

Result<void> read_fields(std::string_view text, MessageHead& head) {
  for (;;) {
    ISOLA_TRY(auto line, next_line(text));
    if (line.empty()) break;
    if (line.front() == ' ' || line.front() == '\t') return fail(Code::invalid, "a line of the head is folded");
    if (head.fields.size() == kMaxFields) return fail(Code::exhausted, "the head has too many fields");
    size_t colon = line.find(':');
    if (colon == line.npos) return fail(Code::invalid, "a line of the head has no colon");
    auto name = line.substr(0, colon), value = trimmed(line.substr(colon + 1));
    if (!is_field_name(name)) return fail(Code::invalid, "the name of a field is no token");
    if (!is_field_value(value)) return fail(Code::invalid, "a field has a character that none may have");
    head.fields.push_back({std::string(name), std::string(value)});
  }
  if (!text.empty()) return fail(Code::invalid, "bytes behind the head");
  return {};
}

Result<void> read_framing(MessageHead& head) {
  int lengths = 0, codings = 0;
  bool close = false, keep = false, upgrades = false;
  std::string_view coding, length, upgrade;
  for (const auto& field : head.fields) {
    if (same_name(field.name, "Content-Length")) ++lengths, length = field.value;
    if (same_name(field.name, "Transfer-Encoding")) ++codings, coding = field.value;
    if (same_name(field.name, "Upgrade")) upgrade = upgrade.empty() ? std::string_view(field.value) : "more than one";
    if (!same_name(field.name, "Connection")) continue;
    close |= has_word(field.value, "close");
    keep |= has_word(field.value, "keep-alive");
    upgrades |= has_word(field.value, "upgrade");
  }
  if (lengths > 1) return fail(Code::invalid, "the head has more than one Content-Length");
  if (codings > 1) return fail(Code::invalid, "the head has more than one Transfer-Encoding");
  if (lengths && codings) return fail(Code::invalid, "the head has both Content-Length and Transfer-Encoding");
  if (lengths) {
    uint64_t value = 0;
    auto [end, bad] = std::from_chars(length.data(), length.data() + length.size(), value);
    if (bad != std::errc() || end != length.data() + length.size() || length.size() > 18)
      return fail(Code::invalid, "Content-Length is no number");
    head.length = value;
  }
  if (codings) {
    if (head.minor == 0) return fail(Code::invalid, "HTTP/1.0 knows no Transfer-Encoding");
    if (!same_name(coding, "chunked"))
      return fail(Code::unsupported, "the only Transfer-Encoding understood is chunked");
    head.chunked = true;
  }
  head.keep_alive = !close && (head.minor == 1 || keep);
  if (upgrades)
    for (char c : upgrade) head.upgrade += lower(c);
  return {};
}

Result<int> read_version(std::string_view text) {
  if (text == "HTTP/1.1") return 1;
  if (text == "HTTP/1.0") return 0;
  return fail(text.starts_with("HTTP/") ? Code::unsupported : Code::invalid,
              "only HTTP/1.0 and HTTP/1.1 are spoken here");
}

}  // namespace

bool HeadEnd::feed(std::string_view buffer) {
  if (size_ > 0) return true;
  size_t from = seen_ < 3 ? 0 : seen_ - 3;
  seen_ = buffer.size();
  size_t at = buffer.find("\r\n\r\n", from);
  // What ends a head for a careless reader ends it here, too: it is then found to be malformed.
  size_t bare = buffer.substr(0, at).find("\n\n", from);
  if (at == buffer.npos && bare == buffer.npos) return false;
  size_ = bare < at ? bare + 2 : at + 4;
  return true;
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [](char x, char y) { return lower(x) == lower(y); });
}

const std::string* find_field(const Fields& fields, std::string_view name) {
  for (const auto& field : fields)
    if (same_name(field.name, name)) return &field.value;
  return nullptr;
}

const std::string* encoding_of(const Fields& fields) {
  for (const auto& field : fields)
    for (const char* name : {"Content-Encoding", "Grpc-Encoding", "Connect-Content-Encoding"})
      if (same_name(field.name, name) && !same_name(field.value, "identity")) return &field.value;
  return nullptr;
}

void remove_field(Fields& fields, std::string_view name) {
  std::erase_if(fields, [&](const Field& field) { return same_name(field.name, name); });
}

bool is_field_name(std::string_view name) { return is_token(name); }

bool has_word(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    size_t comma = std::min(list.find(','), list.size());
    if (same_name(trimmed(list.substr(0, comma)), word)) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

void remove_hop_fields(Fields& fields) {
  std::vector<std::string> named;
  for (const auto& field : fields) {
    if (!same_name(field.name, "Connection")) continue;
    std::string_view list = field.value;
    while (!list.empty()) {
      size_t comma = std::min(list.find(','), list.size());
      named.emplace_back(trimmed(list.substr(0, comma)));
      list.remove_prefix(std::min(comma + 1, list.size()));
    }
  }
  for (const char* name : {"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "TE", "Trailer",
                           "Transfer-Encoding", "Upgrade", "HTTP2-Settings"})
    remove_field(fields, name);
  for (const auto& name : named) {
    // Naming these would change what the message is.
    if (same_name(name, "Host") || same_name(name, "Content-Length")) continue;
    remove_field(fields, name);
  }
}

Result<RequestHead> parse_request_head(std::string_view text) {
  RequestHead head;
  ISOLA_TRY(auto line, next_line(text));
  size_t first = line.find(' '), last = line.rfind(' ');
  if (first == line.npos || first == last || line.find(' ', first + 1) != last)
    return fail(Code::invalid, "the request line has not three words");
  head.method = line.substr(0, first);
  head.target = line.substr(first + 1, last - first - 1);
  ISOLA_TRY(head.minor, read_version(line.substr(last + 1)));
  if (!is_token(head.method)) return fail(Code::invalid, "the method is no token");
  for (char one : head.target) {
    auto c = static_cast<unsigned char>(one);
    if (c <= ' ' || c >= 0x7f || c == '#') return fail(Code::invalid, "the target has a character that none may have");
  }
  ISOLA_CHECK(read_fields(text, head));
  ISOLA_CHECK(read_framing(head));
  int hosts = 0;
  for (const auto& field : head.fields) {
    if (same_name(field.name, "Host")) ++hosts, head.host = field.value;
    if (same_name(field.name, "Expect")) {
      if (!same_name(field.value, "100-continue")) return fail(Code::invalid, "an Expect that nobody knows");
      head.expects_continue = true;
    }
  }
  if (hosts > 1 || (head.minor == 1 && hosts == 0)) return fail(Code::invalid, "a request has exactly one Host");
  return head;
}

Result<ResponseHead> parse_response_head(std::string_view text) {
  ResponseHead head;
  ISOLA_TRY(auto line, next_line(text));
  ISOLA_TRY(head.minor, read_version(line.substr(0, line.find(' '))));
  if (line.size() < 12 || (line.size() > 12 && line[12] != ' '))
    return fail(Code::invalid, "the status line has no status");
  auto digits = line.substr(9, 3);
  auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), head.status);
  if (bad != std::errc() || end != digits.data() + digits.size() || head.status < 100)
    return fail(Code::invalid, "the status is no number");
  head.phrase = line.size() > 13 ? line.substr(13) : std::string_view();
  if (!is_field_value(head.phrase)) return fail(Code::invalid, "the status line has an odd character");
  ISOLA_CHECK(read_fields(text, head));
  ISOLA_CHECK(read_framing(head));
  return head;
}

}  // namespace isola::gate
