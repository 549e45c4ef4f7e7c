// Around the gate by address and packet: other notations, protocols, sockets, devices, and the gate's own ports.
#include <arpa/inet.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "../probe.h"
#include "boundary/network.h"
#include "evasion.h"
#include "families.h"
#include "gate/outside.h"

namespace isola::hostile {

using gate::kForbidden, gate::kGreetPort;

Outcome greet(const std::string& address) {
  return is_address(address) ? got(talk_to(address, kGreetPort, "")) : contained(address);
}

namespace {

sockaddr_in forbidden(uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET, to.sin_port = htons(port);
  ::inet_pton(AF_INET, kForbidden, &to.sin_addr);
  return to;
}

Outcome raw_ip(const Args&) { return greet(kForbidden); }
Outcome raw_ip6(const Args&) { return greet("2001:db8:5::10"); }
Outcome allowed_address(const Args&) { return greet("203.0.113.10"); }
Outcome metadata(const Args&) { return greet("169.254.169.254"); }
Outcome metadata6(const Args&) { return greet("fd00:ec2::254"); }
Outcome private_address(const Args&) { return greet("10.5.0.1"); }

Outcome in_notation(const char* text) {
  in_addr address{};
  char plain[INET_ADDRSTRLEN];
  if (!::inet_aton(text, &address)) return untried(std::string(text) + " is no address here");
  return greet(::inet_ntop(AF_INET, &address, plain, sizeof plain));
}
Outcome one_number(const Args&) { return in_notation("3405803787"); }
Outcome hex_and_octal(const Args&) { return in_notation("0xcb.0.0161.11"); }

Outcome mapped(const Args&) {
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6, to.sin6_port = htons(kGreetPort);
  ::inet_pton(AF_INET6, (std::string("::ffff:") + kForbidden).c_str(), &to.sin6_addr);
  Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  patience(fd);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) < 0) return contained(errno_name(errno));
  return got(read_to_end(fd));
}

// Whoever believes that a proxy is the way out may forget it.
Outcome without_proxy(const Args&) {
  for (const char* name : {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"})
    ::unsetenv(name);
  return greet(kForbidden);
}

// A synthetic address that a neighbour was given for a name that we may not reach.
Outcome anothers_address(const Args&) {
  std::string address = env("ISOLA_OTHERS_ADDRESS");
  return address.empty() ? untried("ISOLA_OTHERS_ADDRESS is not set") : greet(address);
}

Outcome udp(const Args&) {
  Fd fd = dial(kForbidden, gate::kUdpPort, SOCK_DGRAM);
  char c = 'x';
  if (!fd || ::send(fd.get(), &c, 1, 0) < 0) return contained(errno_name(errno));
  return judge("udp", ::recv(fd.get(), &c, 1, 0));
}

Outcome ping(const Args&) {
  Fd fd(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!fd) fd = Fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!fd) return contained("icmp socket: " + errno_name(errno));
  icmphdr echo{};
  echo.type = ICMP_ECHO;
  echo.checksum = static_cast<uint16_t>(~ICMP_ECHO);
  sockaddr_in to = forbidden(0);
  if (::sendto(fd.get(), &echo, sizeof echo, 0, reinterpret_cast<sockaddr*>(&to), sizeof to) < 0)
    return contained(errno_name(errno));
  pollfd ready{fd.get(), POLLIN, 0};
  return ::poll(&ready, 1, 2000) == 1 ? breach("an answer") : contained("no answer");
}

Outcome socket_of(int family, int type, int protocol) {
  Fd fd(::socket(family, type | SOCK_CLOEXEC, protocol));
  return judge("socket", fd.get());
}
Outcome raw_socket(const Args&) { return socket_of(AF_INET, SOCK_RAW, IPPROTO_TCP); }
Outcome packet_socket(const Args&) { return socket_of(AF_PACKET, SOCK_RAW, 0); }

Outcome fast_open(const Args&) {
  sockaddr_in to = forbidden(kGreetPort);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  patience(fd);
  if (::sendto(fd.get(), "x", 1, MSG_FASTOPEN | MSG_NOSIGNAL, reinterpret_cast<sockaddr*>(&to), sizeof to) < 0)
    return contained(errno_name(errno));
  return got(read_to_end(fd));
}

// Connects by a socket of that protocol after setting something.
Outcome greet_after(int protocol, int option, const void* value, socklen_t size) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, protocol));
  if (!fd) return contained("socket: " + errno_name(errno));
  if (option && ::setsockopt(fd.get(), SOL_SOCKET, option, value, size) < 0)
    return contained("setsockopt: " + errno_name(errno));
  patience(fd);
  sockaddr_in to = forbidden(kGreetPort);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) < 0) return contained(errno_name(errno));
  return got(read_to_end(fd));
}
Outcome bound_to_device(const Args&) {
  std::string device = env("ISOLA_DEVICE");
  if (device.empty()) device = "lo";
  return greet_after(0, SO_BINDTODEVICE, device.c_str(), static_cast<socklen_t>(device.size() + 1));
}
Outcome marked(const Args&) {
  int mark = 1;
  return greet_after(0, SO_MARK, &mark, sizeof mark);
}
Outcome multipath(const Args&) { return greet_after(262 /* IPPROTO_MPTCP */, 0, nullptr, 0); }

Outcome squat(int family, int type, uint16_t port) {
  Fd fd(::socket(family, type | SOCK_CLOEXEC, 0));
  int one = 1;
  for (int option : {SO_REUSEADDR, SO_REUSEPORT}) ::setsockopt(fd.get(), SOL_SOCKET, option, &one, sizeof one);
  sockaddr_in four{};
  four.sin_family = AF_INET, four.sin_port = htons(port), four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6, six.sin6_port = htons(port), six.sin6_addr = in6addr_loopback;
  if (family == AF_INET) return judge("bind", ::bind(fd.get(), reinterpret_cast<sockaddr*>(&four), sizeof four));
  return judge("bind", ::bind(fd.get(), reinterpret_cast<sockaddr*>(&six), sizeof six));
}
Outcome squat_gate(const Args&) { return squat(AF_INET, SOCK_STREAM, boundary::kGatePort); }
Outcome squat_gate6(const Args&) { return squat(AF_INET6, SOCK_STREAM, boundary::kGatePort); }
Outcome squat_resolver(const Args&) { return squat(AF_INET, SOCK_DGRAM, boundary::kDnsPort); }

Outcome dial_gate(const Args&) {
  Fd fd = dial("127.0.0.1", boundary::kGatePort);
  return judge("connect", fd.get());
}
Outcome ask_gate(const Args&) {
  Fd fd = dial("127.0.0.1", boundary::kDnsPort, SOCK_DGRAM);
  return judge("send", fd ? ::send(fd.get(), "x", 1, 0) : -1);
}

// A table of packet rules: as little as the kernel takes for one.
Outcome packet_rules(const Args&) {
  struct Message {
    nlmsghdr head;
    nfgenmsg net;
  };
  auto message = [](uint16_t type, uint16_t flags, uint16_t resource, const std::string& rest) {
    Message m{};
    m.head.nlmsg_len = static_cast<uint32_t>(sizeof m + rest.size());
    m.head.nlmsg_type = type;
    m.head.nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
    m.net.nfgen_family = type < 256 ? AF_UNSPEC : NFPROTO_INET;
    m.net.res_id = htons(resource);
    return std::string(reinterpret_cast<char*>(&m), sizeof m) + rest;
  };
  nlattr name{9, NFTA_TABLE_NAME};
  std::string attribute = std::string(reinterpret_cast<char*>(&name), sizeof name) + std::string("evil\0\0\0\0", 8);
  std::string batch = message(NFNL_MSG_BATCH_BEGIN, 0, NFNL_SUBSYS_NFTABLES, "") +
                      message(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_ACK, 0, attribute) +
                      message(NFNL_MSG_BATCH_END, 0, NFNL_SUBSYS_NFTABLES, "");
  Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER));
  if (!fd) return contained("netlink socket: " + errno_name(errno));
  patience(fd);
  alignas(nlmsghdr) char answer[4096];
  if (::send(fd.get(), batch.data(), batch.size(), 0) < 0 || ::recv(fd.get(), answer, sizeof answer, 0) < 0)
    return contained(errno_name(errno));
  errno = -reinterpret_cast<nlmsgerr*>(NLMSG_DATA(reinterpret_cast<nlmsghdr*>(answer)))->error;
  return judge("add a table of packet rules", errno ? -1 : 0);
}

constexpr std::string_view kPacketReset = "the connection is reset, or nothing comes back";

constexpr Program packet_evasion(std::string_view name, std::string_view tries, Outcome (*run)(const Args&),
                                 std::string_view means = kPacketReset, std::string_view no_control = "") {
  return {name, "evasion", tries, means, run, Expect::contained, kNeedsOutside, "", no_control};
}

constexpr Program kPacketEvasions[] = {
    packet_evasion("raw-ip", "connects to a literal address", raw_ip),
    packet_evasion("raw-ip6", "connects to a literal IPv6 address", raw_ip6),
    packet_evasion("allowed-names-address", "connects to the real address of a name that is allowed", allowed_address),
    packet_evasion("ip-as-one-number", "connects to an address written as one number", one_number),
    packet_evasion("ip-in-hex-and-octal", "connects to an address written in hexadecimal and octal numbers",
                   hex_and_octal),
    packet_evasion("v4-mapped-v6", "connects to an IPv4 address written as an IPv6 one", mapped),
    packet_evasion("metadata-address", "connects to the cloud's metadata address", metadata),
    packet_evasion("metadata-address6", "connects to the cloud's metadata address of IPv6", metadata6),
    packet_evasion("private-address", "connects to a private address", private_address),
    packet_evasion("proxy-variables-unset", "forgets the proxy variables and connects directly", without_proxy),
    packet_evasion("anothers-synthetic-address", "connects to the address that a neighbour was given for a name",
                   anothers_address),
    packet_evasion("udp", "sends a datagram outside", udp, "refused, or no answer"),
    packet_evasion("ping", "pings an address outside", ping, "refused, or no answer"),
    packet_evasion("raw-socket", "opens a raw TCP socket", raw_socket, "EPERM"),
    packet_evasion("packet-socket", "opens a packet socket", packet_socket, "EPERM"),
    packet_evasion("fast-open", "sends bytes with the first packet", fast_open),
    packet_evasion("bound-to-a-device", "connects by a socket bound to a device", bound_to_device),
    packet_evasion("marked-packets", "connects with a mark on its packets", marked, "EPERM, or reset"),
    packet_evasion("multipath-tcp", "connects by multipath TCP", multipath),
    packet_evasion("squat-the-gate", "binds the port of the gate", squat_gate, "EADDRINUSE"),
    packet_evasion("squat-the-gate6", "binds the port of the gate, IPv6", squat_gate6, "EADDRINUSE"),
    packet_evasion("squat-the-resolver", "binds the port of the resolver", squat_resolver, "EADDRINUSE"),
    packet_evasion("dial-the-gate", "connects to the gate's port directly", dial_gate, "refused",
                   "nothing listens there without a gate"),
    packet_evasion("ask-the-gate-directly", "sends a datagram to the resolver's port directly", ask_gate, "EPERM"),
    packet_evasion("packet-rules", "makes packet rules of its own", packet_rules, "EPERM"),
};

}  // namespace

Family packet_evasions() { return kPacketEvasions; }

}  // namespace isola::hostile
