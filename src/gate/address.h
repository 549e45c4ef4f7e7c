// IP addresses of both families in one type, networks of them, and what kind of place an address is.
//
// An address is sixteen bytes; an IPv4 one is kept in its IPv4-mapped form, so that 10.0.0.1 and ::ffff:10.0.0.1 are
// the same value and no rule can be walked around by spelling one as the other.
//
//   ISOLA_TRY(Address a, Address::parse("::ffff:10.0.0.1"));
//   a.text()                → "10.0.0.1"
//   place_of(a)             → Place::local, in the block 10.0.0.0/8
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::gate {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

class Address {
 public:
  Address() = default;  // ::
  // Only the plain notations: four decimal numbers without leading zeros, or what inet_pton takes for IPv6.
  static Result<Address> parse(std::string_view text);
  static Address v4(uint32_t host_order);
  static Address v6(const std::array<uint8_t, 16>& bytes) { return Address(bytes); }
  static Result<Address> of(const sockaddr* address);

  bool is_v4() const;
  uint32_t v4() const;  // host order; only if is_v4()
  const std::array<uint8_t, 16>& bytes() const { return bytes_; }
  std::string text() const;
  SocketAddress with_port(uint16_t port) const;

  auto operator<=>(const Address&) const = default;

 private:
  explicit Address(const std::array<uint8_t, 16>& bytes) : bytes_(bytes) {}
  std::array<uint8_t, 16> bytes_{};
};

class Network {
 public:
  // "10.0.0.0/8", "2001:db8::/32", or a single address. Bits behind the prefix must be zero.
  static Result<Network> parse(std::string_view text);

  bool contains(const Address& address) const;
  bool contains(const Network& other) const { return other.bits_ >= bits_ && contains(other.base_); }
  std::string text() const;
  bool operator==(const Network&) const = default;

 private:
  Address base_;
  unsigned bits_ = 128;  // of the sixteen bytes: an IPv4 prefix counts 96 more
};

enum class Place : uint8_t {
  open,         // the internet
  local,        // private, shared (CGNAT) and unique local addresses: somebody's inside
  loopback,     // 127.0.0.0/8, ::1
  link_local,   // 169.254.0.0/16, fe80::/10
  metadata,     // where clouds hand out credentials
  multicast,    // and broadcast
  unspecified,  // 0.0.0.0/8, ::
  reserved,     // nothing should be there
};
std::string_view to_string(Place place);

struct Placed {
  Place place = Place::open;
  std::optional<Network> block;  // the one that says so; none if open
};

// An IPv6 address that carries an IPv4 one inside (NAT64, 6to4, Teredo, IPv4-compatible) is where the inner one is,
// if that is not open.
Placed place_of(const Address& address);
// Whether all of a network lies in one of the places that are not open.
bool is_inside(const Network& network);

}  // namespace isola::gate
