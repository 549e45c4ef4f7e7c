#include "dialect/native/port_access.h"

#include <fmt/format.h>
#include <openssl/hmac.h>

#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/hash/sha256.h"
#include "dialect/shared/cookies.h"
#include "http/guards.h"
#include "http/url.h"

namespace isola::native {

namespace {

using dialect::cookies_of;
using dialect::kGrantCookie;
using dialect::kTokenCookie;

Result<std::string> signature(const std::string& secret, const Grant& grant) {
  // Lengths first: no two grants have the same text.
  std::string text = fmt::format("isola-port-1\n{}\n{}\n{}\n{}:{}", grant.sandbox, grant.port, grant.expires,
                                 grant.path.size(), grant.path);
  unsigned char mac[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (secret.empty() || !::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size))
    return fail(Code::internal, "cannot sign");
  std::string hex;
  for (unsigned i = 0; i < size; ++i) hex += fmt::format("{:02x}", mac[i]);
  return hex;
}

// A path that climbs or hides a slash could leave what was granted, whatever the service makes of it.
// Some decode twice, and some take "..;x" for "..".
bool climbs(std::string_view path) {
  while (!path.empty()) {
    auto slash = path.find('/');
    auto part = path.substr(0, slash);
    part = part.substr(0, part.find(';'));
    if (part == "." || part == "..") return true;
    if (slash == std::string_view::npos) break;
    path.remove_prefix(slash + 1);
  }
  return false;
}

// As lenient as the most lenient: what is no escape stays as it is.
std::string loosely_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2)
      out += static_cast<char>(value), i += 2;
    else
      out += text[i];
  }
  return out;
}

bool plain(std::string_view path) {
  if (!http::percent_decode(path)) return false;
  std::string text(path);
  for (int again = 0; again < 4; ++again) {
    std::string decoded = loosely_decoded(text);
    if (climbs(decoded) || decoded.find('\\') != std::string::npos || decoded.find('\0') != std::string::npos)
      return false;
    if (decoded == text) return true;
    text = std::move(decoded);
  }
  return false;
}

// Browsers say whose request it is where the address is one to be trusted, and nowhere else; behind a proxy that speaks
// TLS we hear it, too.
bool is_trusted(const http::Exchange& ex) {
  auto host = ex.host();
  return ex.secure() || !ex.header("sec-fetch-site").empty() || host == "localhost" || host.ends_with(".localhost");
}

// A page of another origin cannot read what it is answered, and yet could have it done: its requests bring our cookies
// along, since hosts of one domain are one site. Programs that say nothing have no cookies that they did not mean to
// send.
bool from_its_own_page(const http::Exchange& ex) {
  if (!is_trusted(ex) || !http::origin_allowed({}, ex.header("origin"), ex.host_header())) return false;
  auto site = ex.header("sec-fetch-site");
  if (site.empty() || site == "same-origin" || site == "none") return true;
  return ex.header("sec-fetch-mode") == "navigate" && ex.header("sec-fetch-dest") == "document";
}

// Of what a grant for many paths begins with, as far as a cookie's path can say it.
std::string folder_of(const std::string& granted) {
  std::string folder = granted.substr(0, granted.rfind('/') + 1);
  for (char c : folder)
    if (!std::isalnum(static_cast<unsigned char>(c)) && !std::strchr("/-._~%", c)) return "/";
  return folder.empty() ? "/" : folder;
}

// Of this host alone; `seconds`: as long as the browser runs, where none are given.
std::string set_cookie(const http::Exchange& ex, std::string_view name, const std::string& value,
                       const std::string& path, std::optional<int64_t> seconds) {
  if (!is_trusted(ex)) return {};  // nobody would say whose page asks
  return fmt::format("{}={}; Path={}; HttpOnly; SameSite=Lax{}{}", name, value, path, ex.secure() ? "; Secure" : "",
                     seconds ? fmt::format("; Max-Age={}", *seconds) : std::string());
}

struct KeptGrant {
  int64_t expires = 0;
  std::string mac, path;
};

std::optional<KeptGrant> read_grant(std::string_view value) {
  const std::string cookie(value);
  auto first = cookie.find('.'), second = first == std::string::npos ? first : cookie.find('.', first + 1);
  if (second == std::string::npos) return std::nullopt;
  auto path = http::percent_decode(cookie.substr(second + 1));
  if (!path) return std::nullopt;
  return KeptGrant{std::strtoll(cookie.substr(0, first).c_str(), nullptr, 10),
                   cookie.substr(first + 1, second - first - 1), std::move(*path)};
}

Result<void> check_grant(const Grant& grant, const std::string& mac, std::string_view path, const std::string& secret) {
  ISOLA_TRY(std::string wanted, signature(secret, grant));
  if (!equal_secrets(mac, wanted)) return fail(Code::denied, "the signature of this URL is wrong");
  if (sandbox::now_millis() / 1000 >= grant.expires) return fail(Code::denied, "this URL has expired");
  if (!covers(grant.path, path)) return fail(Code::denied, "this URL was signed for another path");
  return {};
}

}  // namespace

bool covers(const std::string& granted, std::string_view path) {
  if (!plain(path)) return false;
  if (granted.ends_with('*')) return path.starts_with(std::string_view(granted).substr(0, granted.size() - 1));
  return path == granted;
}

Result<std::string> sign(const std::string& secret, const Grant& grant) {
  ISOLA_TRY(std::string mac, signature(secret, grant));
  return fmt::format("isola_path={}&isola_expires={}&isola_signature={}", http::percent_encode(grant.path),
                     grant.expires, mac);
}

Result<std::string> may_enter(http::Exchange& ex, const sandbox::Box& box, uint16_t port, const std::string& secret,
                              bool named) {
  const std::string token = box.record().traffic_token;
  if (token.empty()) return std::string();  // public
  if (auto given = ex.header("x-isola-token"); !given.empty() && equal_secrets(std::string(given), token))
    return std::string();
  // To one of the API's own names, by headers, no page of another origin gets as far as this.
  const std::string_view cookies = !named || from_its_own_page(ex) ? ex.header("cookie") : std::string_view();
  for (auto given : cookies_of(cookies, kTokenCookie))
    if (equal_secrets(std::string(given), token)) return std::string();
  if (auto given = ex.query("isola_token"); given && equal_secrets(std::string(*given), token))
    return set_cookie(ex, kTokenCookie, token, "/", std::nullopt);
  Grant grant{box.id(), port, {}, 0};
  if (auto given = ex.query("isola_signature")) {
    grant.path = std::string(ex.query("isola_path").value_or(""));
    grant.expires = std::strtoll(std::string(ex.query("isola_expires").value_or("0")).c_str(), nullptr, 10);
    const std::string mac(*given);
    ISOLA_CHECK(check_grant(grant, mac, ex.path(), secret));
    if (!grant.path.ends_with('*')) return std::string();  // one path, which has it in its address
    return set_cookie(ex, kGrantCookie, fmt::format("{}.{}.{}", grant.expires, mac, http::percent_encode(grant.path)),
                      folder_of(grant.path), grant.expires - sandbox::now_millis() / 1000);
  }
  Error why{Code::denied, "this port is private: it wants the sandbox's port token or a signed URL"};
  for (auto value : cookies_of(cookies, kGrantCookie)) {
    auto kept = read_grant(value);
    if (!kept) continue;
    grant.path = kept->path;
    grant.expires = kept->expires;
    auto good = check_grant(grant, kept->mac, ex.path(), secret);
    if (good) return std::string();
    why = good.error();
  }
  return std::unexpected(why);
}

std::string without_grant(std::string_view target) {
  auto mark = target.find('?');
  if (mark == std::string_view::npos) return std::string(target);
  std::string out(target.substr(0, mark));
  char join = '?';
  for (std::string_view rest = target.substr(mark + 1); !rest.empty();) {
    auto end = rest.find('&');
    auto part = rest.substr(0, end);
    // By the name that we read it under, however that is written.
    auto name = http::percent_decode(part.substr(0, part.find('=')), true);
    bool ours = name && (*name == "isola_token" || *name == "isola_signature" || *name == "isola_expires" ||
                         *name == "isola_path");
    if (!ours) {
      out += join;
      out += part;
      join = '&';
    }
    if (end == std::string_view::npos) break;
    rest.remove_prefix(end + 1);
  }
  return out;
}

}  // namespace isola::native
