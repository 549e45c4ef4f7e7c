// The network: an island has no wire. Services of the host (named by the runner) must not answer.
#include <arpa/inet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../probe.h"
#include "cli/canary_ping.h"
#include "families.h"

namespace isola::hostile {
namespace {

// "1.2.3.4 80,5.6.7.8 81" → addresses. The same form for IPv6.
struct Place {
  std::string text;
  sockaddr_storage address;
  socklen_t size;
};

std::vector<Place> places(const std::string& list) {
  std::vector<Place> all;
  for (size_t at = 0; at < list.size();) {
    size_t end = std::min(list.find(',', at), list.size());
    std::string text = list.substr(at, end - at);
    at = end + 1;
    size_t gap = text.find(' ');
    if (gap == std::string::npos) continue;
    std::string host = text.substr(0, gap);
    auto port = htons(static_cast<uint16_t>(::atoi(text.c_str() + gap)));
    Place place{text, {}, 0};
    auto* v4 = reinterpret_cast<sockaddr_in*>(&place.address);
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&place.address);
    if (::inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = port;
      place.size = sizeof *v4;
    } else if (::inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
      v6->sin6_family = AF_INET6;
      v6->sin6_port = port;
      place.size = sizeof *v6;
    } else {
      continue;
    }
    all.push_back(place);
  }
  return all;
}

// A connection alone means nothing (a gate may take it and say no): an answer does.
void ask_place(Attempts& attempts, const Place& place, int type) {
  int fd = ::socket(place.address.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return attempts.add("socket", -1);
  int connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&place.address), place.size);
  pollfd wait{fd, POLLOUT, 0};
  if (connected < 0 && errno == EINPROGRESS && ::poll(&wait, 1, 1500) == 1) {
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    connected = error ? -1 : 0;
    errno = error;
  }
  if (connected < 0) {
    attempts.add("connect " + place.text, -1);
  } else {
    constexpr std::string_view kQuestion = "GET / HTTP/1.0\r\n\r\n";
    char answer[512];
    ssize_t n = ::send(fd, kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL);
    wait.events = POLLIN;
    ::poll(&wait, 1, 1500);
    n = n < 0 ? n : ::recv(fd, answer, sizeof answer, 0);
    if (n > 0)
      attempts.worked(fmt::format("{} answered {} bytes", place.text, n));
    else
      attempts.refused("ask " + place.text, n == 0 ? "closed without an answer" : errno_name(errno));
  }
  ::close(fd);
}

// The runner's own services first: whether they can be reached is known, so no answer means something. `usual` are
// places that count where they exist; nobody asks them when the host has answered already.
Outcome ask_all(const char* variable, const char* usual, int type) {
  Attempts attempts;
  const std::string canaries = env(variable);
  if (canaries.empty()) return untried(fmt::format("{} is not set", variable));
  for (const std::string& list : {canaries, std::string(usual)}) {
    for (const Place& place : places(list)) ask_place(attempts, place, type);
    if (attempts.any_worked()) break;
  }
  return attempts.outcome();
}

Outcome tcp_out(const Args&) {
  return ask_all("ISOLA_CANARY_TCP", "1.1.1.1 80,10.0.0.1 22,172.17.0.1 80,192.168.0.1 80", SOCK_STREAM);
}
Outcome tcp6_out(const Args&) {
  return ask_all("ISOLA_CANARY_TCP6", "2606:4700:4700::1111 80,fe80::1 80", SOCK_STREAM);
}
Outcome udp_out(const Args&) { return ask_all("ISOLA_CANARY_UDP", "1.1.1.1 53,8.8.8.8 443,10.0.0.1 53", SOCK_DGRAM); }
Outcome metadata_out(const Args&) {
  return ask_all("ISOLA_CANARY_METADATA", "169.254.169.254 80,169.254.170.2 80,100.100.100.200 80,fd00:ec2::254 80",
                 SOCK_STREAM);
}

enum class Echo { none, own_stack, somebody, host };

// All addresses may be local inside (then we ping ourselves): only an answer from another address counts, or one in
// which the host's own words are.
Echo await_echo(int fd, bool to_ourselves) {
  Echo best = Echo::none;
  char answer[512];
  const long end = now_ms() + 1000;
  for (long left; (left = end - now_ms()) > 0;) {
    pollfd wait{fd, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(left)) != 1) break;
    const ssize_t n = ::recv(fd, answer, sizeof answer, 0);
    if (n <= 0) break;
    const std::string_view text(answer, static_cast<size_t>(n));
    if (text.find(cli::kPingAnswer) != std::string_view::npos) return Echo::host;
    if (!to_ourselves) return Echo::somebody;
    best = Echo::own_stack;
  }
  return best;
}

void ping_place(Attempts& attempts, int fd, const Place& place) {
  const std::string what = "ping " + place.text;
  const std::string question =
      cli::echo_message({.type = ICMP_ECHO, .code = 0, .checksum = 0, .un = {}}, cli::kPingQuestion);
  sockaddr_in local{};
  socklen_t size = sizeof local;
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&place.address), place.size) < 0)
    return attempts.add("route to " + place.text, -1);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size);
  const bool ourselves = local.sin_addr.s_addr == reinterpret_cast<const sockaddr_in*>(&place.address)->sin_addr.s_addr;
  if (::send(fd, question.data(), question.size(), 0) < 0) return attempts.add(what, -1);
  switch (await_echo(fd, ourselves)) {
    case Echo::none: return attempts.refused(what, "no answer");
    case Echo::own_stack: return attempts.refused(what, "answered by our own stack");
    case Echo::somebody: return attempts.worked(what);
    case Echo::host: return attempts.worked(what + ": the host answered");
  }
}

Outcome ping_out(const Args&) {
  const std::string canaries = env("ISOLA_CANARY_PING");
  if (canaries.empty()) return untried("ISOLA_CANARY_PING is not set");
  Attempts attempts;
  for (const std::string& list : {canaries, std::string("1.1.1.1 0,10.0.0.1 0")}) {
    for (const Place& place : places(list)) {
      int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_ICMP);
      if (fd < 0) {
        attempts.add("ping socket", -1);
        fd = ::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP);
      }
      if (fd < 0) {
        attempts.add("icmp socket", -1);
        return attempts.outcome();
      }
      ping_place(attempts, fd, place);
      ::close(fd);
    }
    if (attempts.any_worked()) break;
  }
  return attempts.outcome();
}

Outcome has_wire(const Args&) {
  struct if_nameindex* list = ::if_nameindex();
  if (!list) return contained("list interfaces: " + errno_name(errno));
  std::string others;
  for (struct if_nameindex* i = list; i->if_index; ++i) {
    if (::strcmp(i->if_name, "lo") != 0) others += fmt::format(" {}", i->if_name);
  }
  ::if_freenameindex(list);
  return others.empty() ? contained("only lo") : breach("interfaces besides lo:" + others);
}

// One rtnetlink request; 0, or -1 with errno.
int rtnetlink(nlmsghdr& header) {
  int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
  if (fd < 0) return -1;
  header.nlmsg_flags |= NLM_F_REQUEST | NLM_F_ACK;
  char answer[4096];
  ssize_t n = ::send(fd, &header, header.nlmsg_len, 0);
  if (n >= 0) n = ::recv(fd, answer, sizeof answer, 0);
  int saved = errno;
  ::close(fd);
  errno = saved;
  if (n < 0) return -1;
  auto* reply = reinterpret_cast<nlmsghdr*>(answer);
  int error = reinterpret_cast<nlmsgerr*>(NLMSG_DATA(reply))->error;
  errno = -error;
  return error ? -1 : 0;
}

struct Request {
  nlmsghdr header{};
  alignas(4) char body[128]{};
  void* put(const void* data, size_t size) {
    void* at = body + (header.nlmsg_len - NLMSG_HDRLEN);
    ::memcpy(at, data, size);
    header.nlmsg_len = static_cast<unsigned>(NLMSG_ALIGN(header.nlmsg_len + size));
    return at;
  }
  void attribute(unsigned short type, const void* data, size_t size) {
    rtattr attribute{static_cast<unsigned short>(RTA_LENGTH(size)), type};
    put(&attribute, sizeof attribute);
    put(data, size);
  }
};

Outcome change_address(const Args&) {
  Request request;
  request.header.nlmsg_len = NLMSG_HDRLEN;
  request.header.nlmsg_type = RTM_NEWADDR;
  request.header.nlmsg_flags = NLM_F_CREATE;
  ifaddrmsg message{.ifa_family = AF_INET, .ifa_prefixlen = 32, .ifa_flags = 0, .ifa_scope = 0, .ifa_index = 1};
  request.put(&message, sizeof message);
  in_addr address{::inet_addr("203.0.113.7")};
  request.attribute(IFA_LOCAL, &address, sizeof address);
  return judge("add an address to lo", rtnetlink(request.header));
}

Outcome change_route(const Args&) {
  Request request;
  request.header.nlmsg_len = NLMSG_HDRLEN;
  request.header.nlmsg_type = RTM_NEWROUTE;
  request.header.nlmsg_flags = NLM_F_CREATE;
  rtmsg message{};
  message.rtm_family = AF_INET;
  message.rtm_dst_len = 32;
  message.rtm_table = RT_TABLE_MAIN;
  message.rtm_protocol = RTPROT_BOOT;
  message.rtm_type = RTN_BLACKHOLE;
  request.put(&message, sizeof message);
  in_addr address{::inet_addr("203.0.113.9")};
  request.attribute(RTA_DST, &address, sizeof address);
  return judge("add a route", rtnetlink(request.header));
}

Outcome change_rule(const Args&) {
  Request request;
  request.header.nlmsg_len = NLMSG_HDRLEN;
  request.header.nlmsg_type = RTM_NEWRULE;
  request.header.nlmsg_flags = NLM_F_CREATE;
  rtmsg message{};
  message.rtm_family = AF_INET;
  message.rtm_table = RT_TABLE_MAIN;
  message.rtm_type = RTN_UNICAST;
  request.put(&message, sizeof message);
  return judge("add a routing rule", rtnetlink(request.header));
}

Outcome make_link(const Args&) {
  Attempts attempts;
  for (const char* kind : {"dummy", "bridge", "veth", "vlan"}) {
    Request request;
    request.header.nlmsg_len = NLMSG_HDRLEN;
    request.header.nlmsg_type = RTM_NEWLINK;
    request.header.nlmsg_flags = NLM_F_CREATE;
    ifinfomsg message{};
    request.put(&message, sizeof message);
    rtattr info{static_cast<unsigned short>(RTA_LENGTH(0) + RTA_SPACE(::strlen(kind))), IFLA_LINKINFO};
    request.put(&info, sizeof info);
    request.attribute(IFLA_INFO_KIND, kind, ::strlen(kind));
    attempts.add(fmt::format("make a {}", kind), rtnetlink(request.header));
  }
  // lo down and up again: the ioctl road to the same rights.
  int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  ::strcpy(request.ifr_name, "lo");
  if (::ioctl(fd, SIOCGIFFLAGS, &request) == 0)
    attempts.add("set the flags of lo", ::ioctl(fd, SIOCSIFFLAGS, &request));
  ::close(fd);
  return attempts.outcome();
}

// Whoever binds a port of the gate beside it gets a share of its connections.
Outcome hijack_listener(const Args&) {
  Attempts attempts;
  auto table = slurp("/proc/net/tcp");
  if (!table) return contained("/proc/net/tcp: " + errno_name(errno));
  for (size_t at = 0; at < table->size();) {
    unsigned slot, address, port, peer, peer_port, state;
    if (::sscanf(table->c_str() + at, " %u: %x:%x %x:%x %x", &slot, &address, &port, &peer, &peer_port, &state) == 6 &&
        state == 0x0a) {
      int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      int on = 1;
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
      ::setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
      for (uint32_t where : {static_cast<uint32_t>(address), 0x0100007fu}) {
        sockaddr_in local{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port)), .sin_addr = {where}};
        int bound = ::bind(fd, reinterpret_cast<sockaddr*>(&local), sizeof local);
        if (bound == 0) bound = ::listen(fd, 8);
        attempts.add(fmt::format("bind port {}", port), bound);
        if (bound == 0) break;
      }
      ::close(fd);
    }
    size_t end = table->find('\n', at);
    at = end == std::string::npos ? table->size() : end + 1;
  }
  if (attempts.outcome().kind == Outcome::untried) return untried("nobody listens here");
  return attempts.outcome();
}

// Abstract sockets belong to the network namespace. A peer whose pid reads 0 lives outside of our pid namespace.
Outcome abstract_sockets(const Args&) {
  std::vector<std::string> names = {
      "/tmp/.X11-unix/X0", "/tmp/dbus-session", "/org/kernel/linux/storage/multipathd", "/containerd-shim", "isola",
      "isola-launcher"};
  auto table = slurp("/proc/net/unix");
  for (size_t at = table ? table->find('@') : std::string::npos; at != std::string::npos;
       at = table->find('@', at + 1)) {
    names.push_back(table->substr(at + 1, table->find('\n', at) - at - 1));
  }
  Attempts attempts;
  for (const std::string& name : names) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    if (name.size() + 1 > sizeof address.sun_path) continue;
    ::memcpy(address.sun_path + 1, name.data(), name.size());
    int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ucred peer{.pid = -1, .uid = 0, .gid = 0};
    socklen_t size = sizeof peer;
    int connected = ::connect(fd, reinterpret_cast<sockaddr*>(&address),
                              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
    if (connected == 0) ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    if (connected < 0)
      attempts.add("@" + name, -1);
    else if (peer.pid == 0)
      attempts.worked(fmt::format("@{} belongs to a process outside", name));
    else
      attempts.refused("@" + name, "a process of our own");
    ::close(fd);
  }
  return attempts.outcome();
}

constexpr Program kNetworkPrograms[] = {
    {"tcp-out", "network", "talks TCP to a service of the host or the internet", "no answer", tcp_out,
     Expect::contained, kControlNetwork},
    {"tcp6-out", "network", "the same over IPv6", "no answer", tcp6_out, Expect::contained, kControlNetwork},
    {"udp-out", "network", "talks UDP to a service of the host or the internet", "no answer", udp_out,
     Expect::contained, kControlNetwork},
    {"ping-out", "network", "pings an outside address", "refused, or only our own stack answers", ping_out,
     Expect::contained, kControlNetwork},
    {"metadata-out", "network", "asks the cloud's metadata addresses", "no answer", metadata_out, Expect::contained,
     kControlNetwork},
    {"net-wire", "network", "looks for an interface besides lo", "only lo", has_wire, Expect::contained,
     kControlNetwork},
    {"net-address", "network", "adds an address to lo", "EPERM", change_address, Expect::contained, kControlNetwork},
    {"net-route", "network", "adds a route", "EPERM", change_route, Expect::contained, kControlNetwork},
    {"net-rule", "network", "adds a routing rule", "EPERM", change_rule, Expect::contained, kControlNetwork},
    {"net-link", "network", "makes interfaces, changes the flags of lo", "EPERM", make_link, Expect::contained,
     kControlNetwork},
    {"gate-port", "network", "binds the ports on which the gate listens", "EADDRINUSE", hijack_listener,
     Expect::contained, kControlNetwork},
    {"abstract-socket", "network", "connects to abstract sockets of processes outside", "none is there",
     abstract_sockets, Expect::contained, kControlNetwork},
};

}  // namespace

Family network_programs() { return kNetworkPrograms; }

}  // namespace isola::hostile
