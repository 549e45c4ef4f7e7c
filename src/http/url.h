// Percent coding, queries and forms: text in, text out.
//
//   percent_decode("a%20b")            → "a b"
//   parse_query("q=a+b&x&y=%2F")       → {{"q","a b"},{"x",""},{"y","/"}}
//   percent_encode("a/b c")            → "a%2Fb%20c"
//   parse_url("https://h:8443/v1?x=1") → {tls, "h", 8443, "/v1?x=1"}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace isola::http {

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Nothing when a % is not followed by two hex digits or when a NUL byte would come out: both are tricks, never names.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space = false);
// Everything but letters, digits and -._~ is encoded; with keep_slashes, / stays.
std::string percent_encode(std::string_view text, bool keep_slashes = false);

// The pairs of a query or of an application/x-www-form-urlencoded body, in order. At most `max` pairs.
Result<Pairs> parse_query(std::string_view text, size_t max = 1000);
std::string to_query(const Pairs& pairs);

struct Url {
  bool tls = false;
  std::string host;  // without brackets
  uint16_t port = 0;
  std::string target = "/";  // path and query, as sent
  // What the Host header says: the port only where it is not the scheme's own.
  std::string authority() const;
};
Result<Url> parse_url(std::string_view text);  // http, https, ws, wss

// "127.0.0.1:80", "[::1]:80", ":80" and "host" with a default port, into host and port.
Result<std::pair<std::string, uint16_t>> parse_host_port(std::string_view text, std::optional<uint16_t> port = {});

}  // namespace isola::http
