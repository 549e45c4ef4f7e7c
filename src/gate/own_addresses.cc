#include "gate/own_addresses.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <cstring>

namespace isola::gate {

namespace {

struct Question {
  nlmsghdr head;
  rtmsg route;
  rtattr attribute;
  uint8_t address[16];
};
static_assert(sizeof(Question) == sizeof(nlmsghdr) + sizeof(rtmsg) + sizeof(rtattr) + 16);

}  // namespace

Result<OwnAddresses> OwnAddresses::open() {
  Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  if (!fd) return sys_error("cannot ask for routes");
  return OwnAddresses(std::move(fd));
}

bool OwnAddresses::contains(const Address& address) {
  const size_t size = address.is_v4() ? 4 : 16;
  Question question{};
  question.head.nlmsg_len = static_cast<uint32_t>(sizeof question - 16 + size);
  question.head.nlmsg_type = RTM_GETROUTE;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.head.nlmsg_seq = ++asked_;
  question.route.rtm_family = address.is_v4() ? AF_INET : AF_INET6;
  question.route.rtm_dst_len = static_cast<uint8_t>(8 * size);
  question.attribute.rta_type = RTA_DST;
  question.attribute.rta_len = static_cast<uint16_t>(RTA_LENGTH(size));
  std::memcpy(question.address, address.bytes().data() + 16 - size, size);
  if (::send(netlink_.get(), &question, question.head.nlmsg_len, 0) < 0) return true;
  // The kernel has answered by now. An answer that is not ours is one that was left over.
  alignas(nlmsghdr) char buffer[4096];
  for (;;) {
    ssize_t n = ::recv(netlink_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < static_cast<ssize_t>(sizeof(nlmsghdr))) return true;
    const auto* head = reinterpret_cast<const nlmsghdr*>(buffer);
    if (head->nlmsg_seq != asked_) continue;
    if (head->nlmsg_type == NLMSG_ERROR) return false;  // no route: connecting will say so
    if (head->nlmsg_type != RTM_NEWROUTE || n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(rtmsg)))) return true;
    const auto* route = static_cast<const rtmsg*>(NLMSG_DATA(head));
    return route->rtm_type == RTN_LOCAL || route->rtm_type == RTN_ANYCAST;
  }
}

}  // namespace isola::gate
