// The devices of a kernel of the sandbox's own, by hand: there is no program yet that could do it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/ipv6.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "base/file.h"
#include "guest/agent/birth.h"
#include "guest/packet_line.h"

namespace isola::guest {

namespace {

constexpr char kLinkDevice[] = "vec1", kOutsideDevice[] = "vec0", kName[] = "eth0";
// As boundary/network.h has them: the guest's, and who is at the other end of the cable.
constexpr char kAddress4[] = "10.255.255.253", kMask4[] = "255.255.255.252", kGate4[] = "10.255.255.254";
constexpr char kAddress6[] = "fd69:736f:6c61::2", kGate6[] = "fd69:736f:6c61::1";
constexpr int kPrefix6 = 126;

ifreq named(const char* device) {
  ifreq request{};
  std::strncpy(request.ifr_name, device, sizeof request.ifr_name - 1);
  return request;
}

Result<void> bring_up(int socket, const char* device) {
  ifreq request = named(device);
  if (::ioctl(socket, SIOCGIFFLAGS, &request) < 0) return sys_error(std::string("there is no device ") + device);
  request.ifr_flags |= IFF_UP;
  if (::ioctl(socket, SIOCSIFFLAGS, &request) < 0) return sys_error(std::string("cannot bring up ") + device);
  return {};
}

Result<int> index_of(int socket, const char* device) {
  ifreq request = named(device);
  if (::ioctl(socket, SIOCGIFINDEX, &request) < 0) return sys_error(std::string("there is no device ") + device);
  return request.ifr_ifindex;
}

void put(sockaddr& where, const char* address) {
  sockaddr_in in{};
  in.sin_family = AF_INET;
  if (address) ::inet_pton(AF_INET, address, &in.sin_addr);
  std::memcpy(&where, &in, sizeof in);
}

Result<void> set_up_four(int socket) {
  ifreq request = named(kName);
  put(request.ifr_addr, kAddress4);
  if (::ioctl(socket, SIOCSIFADDR, &request) < 0) return sys_error("cannot set the address");
  put(request.ifr_addr, kMask4);
  if (::ioctl(socket, SIOCSIFNETMASK, &request) < 0) return sys_error("cannot set the address");
  ISOLA_CHECK(bring_up(socket, kName));
  rtentry route{};
  put(route.rt_dst, nullptr);
  put(route.rt_genmask, nullptr);
  put(route.rt_gateway, kGate4);
  route.rt_flags = RTF_UP | RTF_GATEWAY;
  if (::ioctl(socket, SIOCADDRT, &route) < 0) return sys_error("cannot set the route");
  return {};
}

Result<void> set_up_six(int index) {
  Fd socket(::socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket && errno == EAFNOSUPPORT) return {};  // the host has none, so this kernel was told not to
  if (!socket) return sys_error("cannot set up IPv6");
  in6_ifreq address{};
  ::inet_pton(AF_INET6, kAddress6, &address.ifr6_addr);
  address.ifr6_prefixlen = kPrefix6;
  address.ifr6_ifindex = index;
  if (::ioctl(socket.get(), SIOCSIFADDR, &address) < 0) return sys_error("cannot set the IPv6 address");
  in6_rtmsg route{};
  ::inet_pton(AF_INET6, kGate6, &route.rtmsg_gateway);
  route.rtmsg_metric = 1;
  route.rtmsg_flags = RTF_UP | RTF_GATEWAY;
  route.rtmsg_ifindex = index;
  if (::ioctl(socket.get(), SIOCADDRT, &route) < 0) return sys_error("cannot set the IPv6 route");
  return {};
}

// Gives the device a name and another network namespace, by a socket of the one that it is in.
Result<void> move_device(int netlink, int index, const char* name, int netns) {
  struct {
    nlmsghdr head;
    ifinfomsg link;
    char attributes[64];
  } message{};
  message.head.nlmsg_type = RTM_NEWLINK;
  message.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
  message.link.ifi_family = AF_UNSPEC;
  message.link.ifi_index = index;
  size_t used = 0;
  auto add = [&](uint16_t type, const void* data, size_t size) {
    auto* attribute = reinterpret_cast<rtattr*>(message.attributes + used);
    attribute->rta_type = type;
    attribute->rta_len = static_cast<uint16_t>(RTA_LENGTH(size));
    std::memcpy(RTA_DATA(attribute), data, size);
    used += RTA_SPACE(size);
  };
  add(IFLA_NET_NS_FD, &netns, sizeof netns);
  add(IFLA_IFNAME, name, std::strlen(name) + 1);
  message.head.nlmsg_len = static_cast<uint32_t>(NLMSG_LENGTH(sizeof message.link) + used);
  if (::send(netlink, &message, message.head.nlmsg_len, 0) < 0) return sys_error("cannot move the network device");
  char answer[1024];
  ssize_t n = ::recv(netlink, answer, sizeof answer, 0);
  const auto* head = reinterpret_cast<const nlmsghdr*>(answer);
  if (n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr))) || head->nlmsg_type != NLMSG_ERROR)
    return fail(Code::internal, "the kernel does not say whether it moved the network device");
  const int error = static_cast<const nlmsgerr*>(NLMSG_DATA(head))->error;
  if (error != 0) return sys_error("cannot move the network device", -error);
  return {};
}

}  // namespace

Result<Fd> open_line() {
  constexpr int kRoom = 4 << 20;  // the kernel counts whole buffers, however small the packet
  Fd line(::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(PacketLine::kType)));
  if (!line) return sys_error("cannot open the link");
  ISOLA_CHECK(bring_up(line.get(), kLinkDevice));
  ISOLA_TRY(int index, index_of(line.get(), kLinkDevice));
  sockaddr_ll place{};
  place.sll_family = AF_PACKET;
  place.sll_protocol = htons(PacketLine::kType);
  place.sll_ifindex = index;
  if (::bind(line.get(), reinterpret_cast<sockaddr*>(&place), sizeof place) < 0)
    return sys_error("cannot open the link");
  for (int what : {SO_RCVBUFFORCE, SO_SNDBUFFORCE})
    if (::setsockopt(line.get(), SOL_SOCKET, what, &kRoom, sizeof kRoom) < 0) return sys_error("cannot open the link");
  return line;
}

Result<void> take_device_apart() {
  Fd netlink(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!netlink) return sys_error("cannot set up the network");
  ISOLA_TRY(int there, index_of(netlink.get(), kOutsideDevice));
  if (::unshare(CLONE_NEWNET) < 0) return sys_error("cannot make a network namespace");
  Fd here(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!here) return sys_error("cannot open the network namespace");
  return move_device(netlink.get(), there, kName, here.get());
}

Result<void> set_up_network() {
  Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return sys_error("cannot set up the network");
  ISOLA_CHECK(bring_up(socket.get(), "lo"));
  // Its address is its own at once; nobody else is at that cable.
  (void)write_file("/proc/sys/net/ipv6/conf/eth0/accept_dad", "0");
  ISOLA_CHECK(set_up_four(socket.get()));
  ISOLA_TRY(int index, index_of(socket.get(), kName));
  return set_up_six(index);
}

}  // namespace isola::guest
