// A library for criu's LD_PRELOAD: criu asks for the connections that the kernel tracks in the sandbox's network,
// twice, and each time the kernel walks through the table of the whole machine, for some ten milliseconds of a
// processor, all of which the sandbox stands still. Nobody needs the answer: a restored sandbox has a new network, its
// connections to the outside are gone, and those inside, which are not redirected, are tracked anew with their next
// packet. So the kernel is asked for what it expects of connections (FTP and the like) instead, which is a short and
// empty list.
#include <dlfcn.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <linux/netlink.h>
#include <sys/socket.h>

#include <cstdlib>
#include <cstring>

namespace {

struct Question {
  nlmsghdr head;
  nfgenmsg body;
};

bool asks_for_connections(const msghdr& message, Question& question) {
  if (message.msg_iovlen != 1 || message.msg_iov[0].iov_len != sizeof question || !message.msg_name ||
      message.msg_namelen < sizeof(sa_family_t) ||
      static_cast<const sockaddr*>(message.msg_name)->sa_family != AF_NETLINK)
    return false;
  std::memcpy(&question, message.msg_iov[0].iov_base, sizeof question);
  return question.head.nlmsg_len == sizeof question &&
         question.head.nlmsg_type == (NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_GET) &&
         (question.head.nlmsg_flags & NLM_F_DUMP) == NLM_F_DUMP;
}

}  // namespace

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  using Function = ssize_t (*)(int, const msghdr*, int);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "sendmsg"));
  static const bool plain = std::getenv("ISOLA_CRIU_PLAIN") != nullptr;  // to be compared with
  Question question{};
  if (plain || !asks_for_connections(*message, question)) return real(socket, message, flags);
  question.head.nlmsg_type = NFNL_SUBSYS_CTNETLINK_EXP << 8 | IPCTNL_MSG_EXP_GET;
  iovec bytes{&question, sizeof question};
  msghdr other = *message;
  other.msg_iov = &bytes;
  return real(socket, &other, flags);
}
