// UDP over loopback, and other families.
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <string.h>
#include <sys/ioctl.h>

#include "../topics.h"
#include "inet.h"

namespace isola::behaviour {
namespace {

constexpr Check kUdpChecks[] = {
    {"udp-datagrams", "datagrams keep their bounds and tell their sender",
     [] {
       int server = served(SOCK_DGRAM), client = dialled(port_of(server), SOCK_DGRAM);
       NEED("connect", client);
       NEED("send", ::send(client, "one", 3, 0));
       NEED("send", ::send(client, "second", 6, 0));
       char text[20];
       sockaddr_in from{};
       socklen_t size = sizeof from;
       WANT(::recvfrom(server, text, sizeof text, 0, any(from), &size) == 3, "another length");
       WANT(ntohs(from.sin_port) == port_of(client), "another sender");
       WANT(::recv(server, text, sizeof text, 0) == 6, "another length");
       return ok();
     }},
    {"udp-truncated", "a buffer that is too small cuts a datagram, and MSG_TRUNC says so",
     [] {
       int server = served(SOCK_DGRAM), client = dialled(port_of(server), SOCK_DGRAM);
       NEED("send", ::send(client, "0123456789", 10, 0));
       char text[4];
       WANT(::recv(server, text, sizeof text, MSG_TRUNC) == 10, "not the whole length");
       return ok();
     }},
    {"udp-refused", "a connected socket learns that nobody listens",
     [] {
       int server = served(SOCK_DGRAM), client = dialled(port_of(server), SOCK_DGRAM);
       ::close(server);
       NEED("send", ::send(client, "x", 1, 0));
       char c;
       WANT(readable(client, 5000), "nothing happened");
       REFUSED("recv", ::recv(client, &c, 1, 0), ECONNREFUSED);
       return ok();
     }},
    {"udp-many-at-once", "sendmmsg and recvmmsg carry several",
     [] {
       int server = served(SOCK_DGRAM), client = dialled(port_of(server), SOCK_DGRAM);
       char text[] = "x", got[3][4];
       iovec out{text, 1}, in[3] = {{got[0], 4}, {got[1], 4}, {got[2], 4}};
       mmsghdr many[3] = {}, back[3] = {};
       for (int i = 0; i < 3; ++i) {
         many[i].msg_hdr.msg_iov = &out, many[i].msg_hdr.msg_iovlen = 1;
         back[i].msg_hdr.msg_iov = &in[i], back[i].msg_hdr.msg_iovlen = 1;
       }
       NEED("sendmmsg", ::sendmmsg(client, many, 3, 0));
       WANT(::recvmmsg(server, back, 3, MSG_WAITFORONE, nullptr) == 3, "not all three");
       return ok();
     }},
    {"udp-packet-info", "IP_PKTINFO tells where a datagram went to",
     [] {
       int server = served(SOCK_DGRAM), client = dialled(port_of(server), SOCK_DGRAM);
       NEED("IP_PKTINFO", set_option(server, IPPROTO_IP, IP_PKTINFO, 1));
       NEED("send", ::send(client, "x", 1, 0));
       char text[4], control[256];
       iovec in{text, 4};
       msghdr message{};
       message.msg_iov = &in, message.msg_iovlen = 1, message.msg_control = control,
       message.msg_controllen = sizeof control;
       NEED("recvmsg", ::recvmsg(server, &message, 0));
       cmsghdr* head = CMSG_FIRSTHDR(&message);
       WANT(head && head->cmsg_type == IP_PKTINFO, "no address");
       auto* info = reinterpret_cast<in_pktinfo*>(CMSG_DATA(head));
       WANT(info->ipi_addr.s_addr == htonl(INADDR_LOOPBACK), "another address");
       return ok();
     }},
    {"udp-large", "a datagram of 60,000 bytes goes over loopback, one of 70,000 is refused",
     [] {
       int server = served(SOCK_DGRAM), client = dialled(port_of(server), SOCK_DGRAM);
       std::string text(60000, 'x'), big(70000, 'x');
       NEED("send", ::send(client, text.data(), text.size(), 0));
       WANT(::recv(server, text.data(), text.size(), 0) == 60000, "another length");
       REFUSED("send", ::send(client, big.data(), big.size(), 0), EMSGSIZE);
       return ok();
     }},
    {"udp-multicast-join", "a group can be joined on loopback",
     [] {
       int fd = served(SOCK_DGRAM);
       ip_mreqn group{};
       group.imr_multiaddr.s_addr = htonl(0xe9fc0102);  // 233.252.1.2, for documentation
       group.imr_address.s_addr = htonl(INADDR_LOOPBACK);
       NEED("IP_ADD_MEMBERSHIP", ::setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
       return ok();
     }},
    {"net-interfaces", "getifaddrs finds loopback with its address",
     [] {
       ifaddrs* all = nullptr;
       NEED("getifaddrs", ::getifaddrs(&all));
       bool found = false;
       for (ifaddrs* one = all; one; one = one->ifa_next)
         if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_LOOPBACK))
           found |= reinterpret_cast<sockaddr_in*>(one->ifa_addr)->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
       WANT(found, "it is not there");
       return ok();
     }},
    {"net-interface-flags", "ioctl tells index and flags of lo",
     [] {
       int fd = ::socket(AF_INET, SOCK_DGRAM, 0);
       ifreq request{};
       ::strcpy(request.ifr_name, "lo");
       NEED("SIOCGIFFLAGS", ::ioctl(fd, SIOCGIFFLAGS, &request));
       WANT((request.ifr_flags & IFF_UP) && (request.ifr_flags & IFF_LOOPBACK), "it is not up");
       NEED("SIOCGIFINDEX", ::ioctl(fd, SIOCGIFINDEX, &request));
       WANT(::if_nametoindex("lo") == static_cast<unsigned>(request.ifr_ifindex), "two indexes");
       return ok();
     }},
    {"net-netlink", "a netlink socket lists links",
     [] {
       int fd = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
       NEED("socket", fd);
       struct {
         nlmsghdr head;
         rtgenmsg what;
       } request{};
       request.head.nlmsg_len = sizeof request;
       request.head.nlmsg_type = RTM_GETLINK;
       request.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
       NEED("send", ::send(fd, &request, sizeof request, 0));
       char answer[16384];
       ssize_t n = ::recv(fd, answer, sizeof answer, 0);
       NEED("recv", n);
       WANT(reinterpret_cast<nlmsghdr*>(answer)->nlmsg_type == RTM_NEWLINK, "no link");
       return ok();
     }},
    {"net-raw-socket", "root opens a raw socket",
     [] {
       NEED("socket", ::socket(AF_INET, SOCK_RAW, IPPROTO_ICMP));
       return ok();
     }},
    {"net-packet-socket", "root opens a packet socket",
     [] {
       NEED("socket", ::socket(AF_PACKET, SOCK_RAW, htons(3)));
       return ok();
     }},
    {"net-socket-filter", "a socket takes a packet filter",
     [] {
       int fd = served(SOCK_DGRAM);
       sock_filter all[] = {BPF_STMT(BPF_RET | BPF_K, 0xffff)};
       sock_fprog program{1, all};
       NEED("SO_ATTACH_FILTER", ::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program));
       return ok();
     }},
    {"net-unknown-family", "a family that is none is refused",
     [] {
       REFUSED("socket", ::socket(99, SOCK_STREAM, 0), EAFNOSUPPORT);
       return ok();
     }},
};

}  // namespace

Checks udp_checks() { return kUdpChecks; }

}  // namespace isola::behaviour
