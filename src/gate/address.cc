#include "gate/address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

namespace isola::gate {

namespace {

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

uint32_t quad(const uint8_t* p) { return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3]; }

struct Block {
  Network network;
  Place place;
};

// The first that contains an address decides.
const std::vector<Block>& blocks() {
  static const std::vector<Block> table = [] {
    constexpr struct {
      const char* network;
      Place place;
    } kBlocks[] = {
        // Metadata services that lie outside link-local, or that deserve their own name.
        {"169.254.169.254/32", Place::metadata},
        {"169.254.170.2/32", Place::metadata},
        {"169.254.170.23/32", Place::metadata},
        {"100.100.100.200/32", Place::metadata},
        {"168.63.129.16/32", Place::metadata},
        {"192.0.0.192/32", Place::metadata},
        {"fd00:ec2::/32", Place::metadata},
        {"fd20:ce::254/128", Place::metadata},
        {"0.0.0.0/8", Place::unspecified},
        {"10.0.0.0/8", Place::local},
        {"100.64.0.0/10", Place::local},
        {"127.0.0.0/8", Place::loopback},
        {"169.254.0.0/16", Place::link_local},
        {"172.16.0.0/12", Place::local},
        {"192.0.0.0/24", Place::reserved},
        {"192.168.0.0/16", Place::local},
        {"198.18.0.0/15", Place::reserved},
        {"224.0.0.0/4", Place::multicast},
        {"255.255.255.255/32", Place::multicast},
        {"240.0.0.0/4", Place::reserved},
        {"::/128", Place::unspecified},
        {"::1/128", Place::loopback},
        {"fc00::/7", Place::local},
        {"64:ff9b:1::/48", Place::local},
        {"fec0::/10", Place::local},
        {"fe80::/10", Place::link_local},
        {"ff00::/8", Place::multicast},
        {"100::/64", Place::reserved},
    };
    std::vector<Block> out;
    for (const auto& block : kBlocks) out.push_back({Network::parse(block.network).value(), block.place});
    return out;
  }();
  return table;
}

Placed look_up(const Address& address) {
  for (const auto& block : blocks())
    if (block.network.contains(address)) return {block.place, block.network};
  return {};
}

// The IPv4 addresses that an IPv6 one carries.
std::vector<Address> inner(const Address& address) {
  const auto& b = address.bytes();
  auto at = [&](size_t i) { return Address::v4(quad(&b[i])); };
  auto starts = [&](std::initializer_list<uint8_t> prefix) {
    return std::equal(prefix.begin(), prefix.end(), b.begin());
  };
  if (starts({0x20, 0x02})) return {at(2)};                                                // 6to4
  if (starts({0x00, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0})) return {at(12)};           // NAT64
  if (starts({0x20, 0x01, 0x00, 0x00})) return {at(4), Address::v4(~quad(&b[12]))};        // Teredo
  if (starts({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}) && quad(&b[12]) > 1) return {at(12)};   // IPv4-compatible
  if (starts({0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0})) return {at(12)};                 // IPv4-translated
  if ((b[8] & 0xfd) == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe) return {at(12)};  // ISATAP
  return {};
}

}  // namespace

Result<Address> Address::parse(std::string_view text) {
  std::string copy(text);  // inet_pton wants an end
  if (copy.size() != std::strlen(copy.c_str())) return fail(Code::invalid, "an address has a NUL in it");
  in_addr four;
  if (::inet_pton(AF_INET, copy.c_str(), &four) == 1) return v4(ntohl(four.s_addr));
  std::array<uint8_t, 16> six;
  if (::inet_pton(AF_INET6, copy.c_str(), six.data()) == 1) return Address(six);
  return fail(Code::invalid, "this is not an IP address: " + copy);
}

Address Address::v4(uint32_t host_order) {
  Address out;
  std::copy(kMapped.begin(), kMapped.end(), out.bytes_.begin());
  for (size_t i = 0; i < 4; ++i) out.bytes_[12 + i] = static_cast<uint8_t>(host_order >> (24 - 8 * i));
  return out;
}

Result<Address> Address::of(const sockaddr* address) {
  if (address->sa_family == AF_INET) return v4(ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr));
  if (address->sa_family != AF_INET6) return fail(Code::invalid, "neither IPv4 nor IPv6");
  std::array<uint8_t, 16> bytes;
  std::memcpy(bytes.data(), &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, bytes.size());
  return Address(bytes);
}

bool Address::is_v4() const { return std::equal(kMapped.begin(), kMapped.end(), bytes_.begin()); }
uint32_t Address::v4() const { return quad(&bytes_[12]); }

std::string Address::text() const {
  char out[INET6_ADDRSTRLEN];
  return is_v4() ? ::inet_ntop(AF_INET, &bytes_[12], out, sizeof out) : ::inet_ntop(AF_INET6, &bytes_, out, sizeof out);
}

SocketAddress Address::with_port(uint16_t port) const {
  SocketAddress out;
  if (is_v4()) {
    auto* four = reinterpret_cast<sockaddr_in*>(&out.storage);
    four->sin_family = AF_INET;
    four->sin_port = htons(port);
    four->sin_addr.s_addr = htonl(v4());
    out.size = sizeof *four;
  } else {
    auto* six = reinterpret_cast<sockaddr_in6*>(&out.storage);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    std::memcpy(&six->sin6_addr, bytes_.data(), bytes_.size());
    out.size = sizeof *six;
  }
  return out;
}

Result<Network> Network::parse(std::string_view text) {
  Network out;
  size_t slash = text.find('/');
  ISOLA_TRY(out.base_, Address::parse(text.substr(0, slash)));
  bool four = text.substr(0, slash).find(':') == std::string_view::npos;
  if (slash != std::string_view::npos) {
    std::string_view digits = text.substr(slash + 1);
    unsigned bits = 0;
    auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
    if (bad != std::errc() || end != digits.data() + digits.size() || bits > (four ? 32u : 128u) ||
        (digits.size() > 1 && digits[0] == '0'))
      return fail(Code::invalid, "the prefix length of a network is wrong: " + std::string(text));
    out.bits_ = bits + (four ? 96 : 0);
    // ::ffff:0:0/100 is an IPv4 network in disguise and fine; one that holds the IPv4 addresses and more is not.
    if (!four && out.base_.is_v4() && bits < 96)
      return fail(Code::invalid, "write IPv4 networks as such: " + std::string(text));
  }
  for (unsigned bit = out.bits_; bit < 128; ++bit)
    if (out.base_.bytes()[bit / 8] & (0x80 >> bit % 8))
      return fail(Code::invalid, "a network has bits behind its prefix: " + std::string(text));
  return out;
}

bool Network::contains(const Address& address) const {
  // ::/0 speaks of IPv6; the IPv4 addresses have 0.0.0.0/0.
  if (bits_ < 96 && address.is_v4()) return false;
  size_t whole = bits_ / 8;
  if (std::memcmp(base_.bytes().data(), address.bytes().data(), whole) != 0) return false;
  unsigned rest = bits_ % 8;
  if (rest == 0) return true;
  auto mask = static_cast<uint8_t>(0xff << (8 - rest));
  return (base_.bytes()[whole] & mask) == (address.bytes()[whole] & mask);
}

std::string Network::text() const {
  bool four = base_.is_v4() && bits_ >= 96;
  return base_.text() + "/" + std::to_string(four ? bits_ - 96 : bits_);
}

std::string_view to_string(Place place) {
  switch (place) {
    case Place::open: return "open";
    case Place::local: return "local";
    case Place::loopback: return "loopback";
    case Place::link_local: return "link-local";
    case Place::metadata: return "metadata";
    case Place::multicast: return "multicast";
    case Place::unspecified: return "unspecified";
    case Place::reserved: return "reserved";
  }
  return "?";
}

bool is_inside(const Network& network) {
  // One address that has an IPv4 one in it leads to where that one leads.
  std::string text = network.text();
  auto one = Address::parse(std::string_view(text).substr(0, text.find('/')));
  if (one && network == Network::parse(one->text()).value() && place_of(*one).place != Place::open) return true;
  return std::any_of(blocks().begin(), blocks().end(),
                     [&](const Block& block) { return block.network.contains(network); });
}

Placed place_of(const Address& address) {
  if (Placed found = look_up(address); found.place != Place::open) return found;
  if (address.is_v4()) return {};
  for (const auto& four : inner(address))
    if (Placed found = look_up(four); found.place != Place::open) {
      // What a rule must name is the address that would be connected to, so the block is that one alone.
      return {found.place, Network::parse(address.text()).value()};
    }
  return {};
}

}  // namespace isola::gate
