#include "http/url.h"

#include <charconv>

#include "http/text.h"

namespace isola::http {

namespace {

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool unreserved(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
         c == '_' || c == '~';
}

}  // namespace

std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); i++) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return {};
      int high = hex(text[i + 1]), low = hex(text[i + 2]);
      if (high < 0 || low < 0) return {};
      c = static_cast<char>(high << 4 | low);
      i += 2;
    } else if (c == '+' && plus_is_space) {
      c = ' ';
    }
    if (c == '\0') return {};
    out += c;
  }
  return out;
}

std::string percent_encode(std::string_view text, bool keep_slashes) {
  static constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (char c : text) {
    if (unreserved(c) || (c == '/' && keep_slashes)) {
      out += c;
    } else {
      out += '%';
      out += kDigits[static_cast<unsigned char>(c) >> 4];
      out += kDigits[static_cast<unsigned char>(c) & 15];
    }
  }
  return out;
}

Result<Pairs> parse_query(std::string_view text, size_t max) {
  Pairs pairs;
  while (!text.empty()) {
    size_t end = text.find('&');
    std::string_view item = text.substr(0, end);
    text = end == text.npos ? std::string_view() : text.substr(end + 1);
    if (item.empty()) continue;
    if (pairs.size() == max) return fail(Code::invalid, "too many parameters in the query");
    size_t equals = item.find('=');
    auto name = percent_decode(item.substr(0, equals), true);
    auto value = percent_decode(equals == item.npos ? std::string_view() : item.substr(equals + 1), true);
    if (!name || !value) return fail(Code::invalid, "the query has a malformed percent escape");
    pairs.emplace_back(std::move(*name), std::move(*value));
  }
  return pairs;
}

std::string to_query(const Pairs& pairs) {
  std::string out;
  for (const auto& [name, value] : pairs) {
    if (!out.empty()) out += '&';
    out += percent_encode(name);
    out += '=';
    out += percent_encode(value);
  }
  return out;
}

std::string Url::authority() const {
  std::string out = host.find(':') == host.npos ? host : "[" + host + "]";
  if (port != (tls ? 443 : 80)) out += ":" + std::to_string(port);
  return out;
}

Result<Url> parse_url(std::string_view text) {
  Url url;
  size_t scheme_end = text.find("://");
  if (scheme_end == text.npos) return fail(Code::invalid, "a URL starts with http:// or https://");
  std::string_view scheme = text.substr(0, scheme_end);
  if (equal_nocase(scheme, "https") || equal_nocase(scheme, "wss")) {
    url.tls = true;
  } else if (!equal_nocase(scheme, "http") && !equal_nocase(scheme, "ws")) {
    return fail(Code::invalid, "only http, https, ws and wss URLs are understood");
  }
  text.remove_prefix(scheme_end + 3);
  size_t end = text.find_first_of("/?#");
  ISOLA_TRY(auto at, parse_host_port(text.substr(0, end), url.tls ? 443 : 80));
  url.host = std::move(at.first);
  url.port = at.second;
  if (url.host.empty()) return fail(Code::invalid, "the URL names no host");
  std::string_view target = end == text.npos ? std::string_view() : text.substr(end);
  target = target.substr(0, target.find('#'));
  for (char c : target) {
    if (c <= ' ' || c == 127) return fail(Code::invalid, "the URL has a space or control character");
  }
  url.target = target.empty() || target[0] != '/' ? "/" + std::string(target) : std::string(target);
  return url;
}

Result<std::pair<std::string, uint16_t>> parse_host_port(std::string_view text, std::optional<uint16_t> port) {
  std::string_view host = text, digits;
  bool has_port = false;
  if (text.starts_with('[')) {
    size_t close = text.find(']');
    if (close == text.npos) return fail(Code::invalid, "an IPv6 address lacks its ]");
    host = text.substr(1, close - 1);
    std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') return fail(Code::invalid, "after ] comes a port or nothing");
    if (!rest.empty()) digits = rest.substr(1), has_port = true;
  } else if (size_t colon = text.find(':'); colon != text.npos) {
    if (text.find(':', colon + 1) != text.npos) return fail(Code::invalid, "an IPv6 address stands in [ ]");
    host = text.substr(0, colon);
    digits = text.substr(colon + 1), has_port = true;
  }
  for (char c : host) {
    if (!unreserved(c) && c != ':' && c != '%')
      return fail(Code::invalid, "the host name has a character that none may have");
  }
  if (!has_port) {
    if (!port) return fail(Code::invalid, "an address is ADDRESS:PORT");
    return std::pair(std::string(host), *port);
  }
  unsigned number = 0;
  auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (ec != std::errc() || end != digits.data() + digits.size() || digits.size() > 5 || number > 65535) {
    return fail(Code::invalid, "a port is a number up to 65535");
  }
  return std::pair(std::string(host), static_cast<uint16_t>(number));
}

}  // namespace isola::http
