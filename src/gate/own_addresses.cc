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

constexpr auto kLongestLook = std::chrono::seconds(1);

// Whatever can make another route the right one. An address brings its route with it; a link or a nexthop that goes
// takes routes with it without a word about them.
constexpr int kGroups[] = {RTNLGRP_LINK,      RTNLGRP_IPV4_ROUTE, RTNLGRP_IPV6_ROUTE,
                           RTNLGRP_IPV4_RULE, RTNLGRP_IPV6_RULE,  RTNLGRP_NEXTHOP};

}  // namespace

size_t OwnAddresses::Hash::operator()(const Address& address) const {
  return std::hash<std::string_view>()({reinterpret_cast<const char*>(address.bytes().data()), address.bytes().size()});
}

Result<OwnAddresses> OwnAddresses::open() {
  Fd questions(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  Fd changes(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_ROUTE));
  if (!questions || !changes) return sys_error("cannot ask for routes");
  // Without a number of its own it would count as whoever made the change, who is not told.
  sockaddr_nl self{.nl_family = AF_NETLINK};
  if (::bind(changes.get(), reinterpret_cast<const sockaddr*>(&self), sizeof self) < 0)
    return sys_error("cannot be told of changed routes");
  for (int group : kGroups)
    if (::setsockopt(changes.get(), SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &group, sizeof group) < 0)
      return sys_error("cannot be told of changed routes");
  return OwnAddresses(std::move(questions), std::move(changes));
}

bool OwnAddresses::contains(const Address& address) {
  auto now = Clock::now();
  if (changed() || now - known_since_ > kLongestLook || known_.size() >= kMost) known_.clear(), known_since_ = now;
  if (auto it = known_.find(address); it != known_.end()) return it->second;
  auto own = ask(address);
  if (own) known_.emplace(address, *own);
  return own.value_or(true);
}

// Since it was asked for the last time; also where that cannot be told (too many of them, for instance).
bool OwnAddresses::changed() {
  bool out = false;
  for (int i = 0; i < 1000; ++i) {
    char beginning[1];
    if (::recv(changes_.get(), beginning, sizeof beginning, 0) < 0) {
      if (errno == EAGAIN) return out;
      if (errno != EINTR && errno != ENOBUFS) return true;
    }
    out = true;
  }
  return true;
}

std::optional<bool> OwnAddresses::ask(const Address& address) {
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
  if (::send(questions_.get(), &question, question.head.nlmsg_len, 0) < 0) return std::nullopt;
  // The kernel has answered by now. An answer that is not ours is one that was left over.
  alignas(nlmsghdr) char buffer[4096];
  for (;;) {
    ssize_t n = ::recv(questions_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < static_cast<ssize_t>(sizeof(nlmsghdr))) return std::nullopt;
    const auto* head = reinterpret_cast<const nlmsghdr*>(buffer);
    if (head->nlmsg_seq != asked_) continue;
    if (head->nlmsg_type == NLMSG_ERROR) {
      if (n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(nlmsgerr)))) return std::nullopt;
      const int error = static_cast<const nlmsgerr*>(NLMSG_DATA(head))->error;
      if (error == -ENOMEM || error == -ENOBUFS) return std::nullopt;
      return false;  // no route: connecting will say so
    }
    if (head->nlmsg_type != RTM_NEWROUTE || n < static_cast<ssize_t>(NLMSG_LENGTH(sizeof(rtmsg)))) return std::nullopt;
    const auto* route = static_cast<const rtmsg*>(NLMSG_DATA(head));
    return route->rtm_type == RTN_LOCAL || route->rtm_type == RTN_ANYCAST;
  }
}

}  // namespace isola::gate
