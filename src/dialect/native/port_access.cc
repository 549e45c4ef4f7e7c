#include "dialect/native/port_access.h"

#include <fmt/format.h>
#include <openssl/hmac.h>

#include <charconv>

#include "base/hash/sha256.h"
#include "http/url.h"

namespace isola::native {

namespace {

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

std::string cookie(std::string_view header, std::string_view name) {
  while (!header.empty()) {
    auto end = header.find(';');
    auto part = header.substr(0, end);
    while (part.starts_with(' ')) part.remove_prefix(1);
    if (part.starts_with(name) && part.size() > name.size() && part[name.size()] == '=')
      return std::string(part.substr(name.size() + 1));
    if (end == std::string_view::npos) break;
    header.remove_prefix(end + 1);
  }
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

Result<void> may_enter(http::Exchange& ex, const sandbox::Box& box, uint16_t port, const std::string& secret) {
  std::string token = box.record().traffic_token;
  if (token.empty()) return {};  // public
  for (std::string given : {std::string(ex.header("x-isola-token")), std::string(ex.query("isola_token").value_or("")),
                            cookie(ex.header("cookie"), "isola_token")}) {
    if (!given.empty() && equal_secrets(given, token)) return {};
  }
  auto given = ex.query("isola_signature");
  if (!given) return fail(Code::denied, "this port is private: it wants the sandbox's port token or a signed URL");
  Grant grant{box.id(), port, std::string(ex.query("isola_path").value_or("")), 0};
  grant.expires = std::strtoll(std::string(ex.query("isola_expires").value_or("0")).c_str(), nullptr, 10);
  ISOLA_TRY(std::string wanted, signature(secret, grant));
  if (!equal_secrets(*given, wanted)) return fail(Code::denied, "the signature of this URL is wrong");
  if (sandbox::now_millis() / 1000 >= grant.expires) return fail(Code::denied, "this URL has expired");
  if (!covers(grant.path, ex.path())) return fail(Code::denied, "this URL was signed for another path");
  return {};
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
