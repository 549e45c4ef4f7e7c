#include "kernel/netlink.h"

#include <libmnl/libmnl.h>
#include <sys/socket.h>

#include <cstring>

#include "kernel/fault.h"

namespace isola::kernel {

namespace {

constexpr size_t kMostPerMessage = 2048;  // ours are below 500 bytes
constexpr size_t kReceive = 32768;        // the kernel fills dumps up to this much at a time

}  // namespace

void NetlinkBatch::add(std::string step, uint16_t type, uint16_t flags, const std::function<void(nlmsghdr*)>& fill) {
  alignas(nlmsghdr) char room[kMostPerMessage] = {};
  nlmsghdr* message = mnl_nlmsg_put_header(room);
  message->nlmsg_type = type;
  message->nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  steps.push_back(std::move(step));
  message->nlmsg_seq = static_cast<uint32_t>(steps.size());
  if (fill) fill(message);
  if (flags & NLM_F_ACK) ++acks;
  bytes.append(room, NLMSG_ALIGN(message->nlmsg_len));
}

Result<NetlinkSocket> NetlinkSocket::open(int protocol) {
  if (int e = fault::at("netlink_open")) return sys_error("cannot open a netlink socket", e);
  Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, protocol));
  if (!fd) return sys_error("cannot open a netlink socket");
  return NetlinkSocket(std::move(fd));
}

Result<void> NetlinkSocket::send(const NetlinkBatch& batch) const {
  if (int e = fault::at("netlink_send")) return sys_error("cannot send to the kernel", e);
  sockaddr_nl kernel{.nl_family = AF_NETLINK};
  ssize_t n;
  do
    n = ::sendto(fd_.get(), batch.bytes.data(), batch.bytes.size(), 0, reinterpret_cast<sockaddr*>(&kernel),
                 sizeof kernel);
  while (n < 0 && errno == EINTR);
  if (n < 0) return sys_error("cannot send to the kernel");
  if (static_cast<size_t>(n) != batch.bytes.size()) return fail(Code::internal, "short send to the kernel");
  return {};
}

Result<void> NetlinkSocket::run(const NetlinkBatch& batch) const {
  ISOLA_CHECK(send(batch));
  alignas(nlmsghdr) char answer[kReceive];
  for (uint32_t left = batch.acks; left > 0;) {
    ssize_t n = ::recv(fd_.get(), answer, sizeof answer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("the kernel did not acknowledge the network set-up");
    int rest = static_cast<int>(n);
    for (auto* m = reinterpret_cast<nlmsghdr*>(answer); mnl_nlmsg_ok(m, rest); m = mnl_nlmsg_next(m, &rest)) {
      if (m->nlmsg_type != NLMSG_ERROR || m->nlmsg_len < NLMSG_LENGTH(sizeof(nlmsgerr))) continue;
      const auto* report = static_cast<const nlmsgerr*>(mnl_nlmsg_get_payload(m));
      if (report->error != 0) {
        bool known = m->nlmsg_seq >= 1 && m->nlmsg_seq <= batch.steps.size();
        return sys_error("cannot " + (known ? batch.steps[m->nlmsg_seq - 1] : std::string("set up the network")),
                         -report->error);
      }
      if (left > 0) --left;
    }
  }
  return {};
}

Result<void> NetlinkSocket::dump(const NetlinkBatch& request, const std::function<void(const nlmsghdr&)>& each) const {
  ISOLA_CHECK(send(request));
  alignas(nlmsghdr) char answer[kReceive];
  for (;;) {
    ssize_t n = ::recv(fd_.get(), answer, sizeof answer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("the kernel did not finish " + request.steps.front());
    int rest = static_cast<int>(n);
    for (auto* m = reinterpret_cast<nlmsghdr*>(answer); mnl_nlmsg_ok(m, rest); m = mnl_nlmsg_next(m, &rest)) {
      if (m->nlmsg_flags & NLM_F_DUMP_INTR)
        return fail(Code::unavailable, "the network changed while it was being read");
      if (m->nlmsg_type == NLMSG_DONE) return {};
      if (m->nlmsg_type == NLMSG_ERROR)
        return sys_error("cannot do " + request.steps.front(),
                         -static_cast<const nlmsgerr*>(mnl_nlmsg_get_payload(m))->error);
      each(*m);
    }
  }
}

NetlinkAttributes attributes_of(const nlmsghdr& message, size_t header_size) {
  NetlinkAttributes out;
  auto* a = static_cast<const nlattr*>(mnl_nlmsg_get_payload_offset(&message, header_size));
  const char* end = static_cast<const char*>(mnl_nlmsg_get_payload_tail(&message));
  for (; mnl_attr_ok(a, static_cast<int>(end - reinterpret_cast<const char*>(a))); a = mnl_attr_next(a))
    out[mnl_attr_get_type(a)] = {static_cast<const uint8_t*>(mnl_attr_get_payload(a)), mnl_attr_get_payload_len(a)};
  return out;
}

std::string hex(std::span<const uint8_t> bytes) {
  std::string out;
  for (uint8_t b : bytes) {
    out.push_back("0123456789abcdef"[b >> 4]);
    out.push_back("0123456789abcdef"[b & 15]);
  }
  return out;
}

}  // namespace isola::kernel
