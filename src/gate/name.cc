#include "gate/name.h"

#include <algorithm>
#include <array>
#include <vector>

namespace isola::gate {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// 1, 127, 0x7f, 0x: what address parsers of one program or another take for a number.
bool looks_like_a_number(std::string_view label) {
  if (std::all_of(label.begin(), label.end(), is_digit)) return true;
  if (!label.starts_with("0x")) return false;
  return std::all_of(label.begin() + 2, label.end(), [](char c) { return is_digit(c) || (c >= 'a' && c <= 'f'); });
}

// With everything below them.
constexpr auto kPublicResolvers = std::to_array<std::string_view>({
    "cloudflare-dns.com",
    "cloudflare-gateway.com",
    "controld.com",
    "d.adguard-dns.com",
    "dns.adguard-dns.com",
    "dns.adguard.com",
    "dns.alidns.com",
    "dns.cloudflare.com",
    "dns.digitale-gesellschaft.ch",
    "dns.google",
    "dns.google.com",
    "dns.mullvad.net",
    "dns.nextdns.io",
    "dns.opendns.com",
    "dns.quad9.net",
    "dns.sb",
    "dns.switch.ch",
    "dns0.eu",
    "dns10.quad9.net",
    "dns11.quad9.net",
    "dns9.quad9.net",
    "dnsforge.de",
    "doh.applied-privacy.net",
    "doh.cleanbrowsing.org",
    "doh.dns.apple.com",
    "doh.familyshield.opendns.com",
    "doh.libredns.gr",
    "doh.mullvad.net",
    "doh.opendns.com",
    "doh.pub",
    "doh.tiar.app",
    "doh.xfinity.com",
    "dot.pub",
    "odvr.nic.cz",
    "one.one.one.one",
    "ordns.he.net",
    "unfiltered.adguard-dns.com",
    "wikimedia-dns.org",
});

}  // namespace

Result<std::string> normal_name(std::string_view text) {
  if (text.ends_with('.')) text.remove_suffix(1);
  if (text.empty()) return fail(Code::invalid, "a host name is empty");
  if (text.size() > kMaxName) return fail(Code::invalid, "a host name has more than 253 characters");
  std::string name;
  name.reserve(text.size());
  size_t label = 0;  // where it began
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || text[i] == '.') {
      size_t size = i - label;
      if (size == 0) return fail(Code::invalid, "a host name has an empty label");
      if (size > kMaxLabel) return fail(Code::invalid, "a label of a host name has more than 63 characters");
      if (text[label] == '-' || text[i - 1] == '-')
        return fail(Code::invalid, "a label of a host name begins or ends with '-'");
      label = i + 1;
      if (i < text.size()) name.push_back('.');
      continue;
    }
    char c = text[i];
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (!((c >= 'a' && c <= 'z') || is_digit(c) || c == '-' || c == '_'))
      return fail(Code::invalid, "a host name has a character other than letters, digits, '-' and '_'");
    name.push_back(c);
  }
  if (looks_like_a_number(tail_of(name, 1)))
    return fail(Code::invalid, "a host name ends in a number: it is an address in some notation");
  return name;
}

bool is_below(std::string_view name, std::string_view parent) {
  return name.size() > parent.size() + 1 && name.ends_with(parent) && name[name.size() - parent.size() - 1] == '.';
}

std::string_view tail_of(std::string_view name, size_t labels) {
  size_t at = name.size();
  while (labels-- > 0) {
    if (at == 0) return name;
    size_t dot = name.rfind('.', at - 1);
    if (dot == std::string_view::npos) return name;
    at = dot;
  }
  return name.substr(at + 1);
}

bool is_public_resolver(const Address& address) {
  static const std::vector<Address> kAddresses = [] {
    std::vector<Address> out;
    for (const char* text : {"1.0.0.1",
                             "1.0.0.2",
                             "1.0.0.3",
                             "1.1.1.1",
                             "1.1.1.2",
                             "1.1.1.3",
                             "8.8.4.4",
                             "8.8.8.8",
                             "9.9.9.9",
                             "9.9.9.10",
                             "9.9.9.11",
                             "94.140.14.14",
                             "94.140.15.15",
                             "149.112.112.112",
                             "185.228.168.9",
                             "185.228.169.9",
                             "208.67.220.220",
                             "208.67.222.222",
                             "2001:4860:4860::8844",
                             "2001:4860:4860::8888",
                             "2606:4700:4700::1001",
                             "2606:4700:4700::1111",
                             "2620:fe::9",
                             "2620:fe::fe",
                             "2a10:50c0::ad1:ff",
                             "2a10:50c0::ad2:ff"})
      if (auto parsed = Address::parse(text)) out.push_back(*parsed);
    return out;
  }();
  return std::find(kAddresses.begin(), kAddresses.end(), address) != kAddresses.end();
}

bool is_public_resolver(std::string_view name) {
  return std::any_of(kPublicResolvers.begin(), kPublicResolvers.end(),
                     [name](std::string_view known) { return name == known || is_below(name, known); });
}

}  // namespace isola::gate
