// Netlink: messages that are built once, as bytes, and sent as often as needed.
//
//   NetlinkBatch setup = …;                                           // at start
//   ISOLA_TRY(NetlinkSocket rt, NetlinkSocket::open(NETLINK_ROUTE));  // in the namespace that is meant
//   ISOLA_CHECK(rt.run(setup));                                       // one send; every acknowledgement is checked
//
// A socket belongs to the network namespace that its thread was in when it was opened.
#pragma once

#include <linux/netlink.h>

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::kernel {

// Messages to be sent together. Their sequence numbers are 1, 2, 3 …; `steps[n - 1]` says for people what number n
// does.
struct NetlinkBatch {
  std::string bytes;
  std::vector<std::string> steps;
  uint32_t acks = 0;  // how many of them ask for an acknowledgement

  // For appending a message: a cleared one with this type, the next sequence number, and room for attributes (add them
  // with mnl_attr_put…), which `fill` completes.
  void add(std::string step, uint16_t type, uint16_t flags, const std::function<void(nlmsghdr*)>& fill);
};

class NetlinkSocket {
 public:
  static Result<NetlinkSocket> open(int protocol);

  // Sends the batch and checks that each message was taken. The kernel works on it before send returns, so this never
  // waits.
  Result<void> run(const NetlinkBatch& batch) const;
  // Sends one dump request (a batch of one) and calls `each` for every message of the answer.
  Result<void> dump(const NetlinkBatch& request, const std::function<void(const nlmsghdr&)>& each) const;

 private:
  explicit NetlinkSocket(Fd fd) : fd_(std::move(fd)) {}
  Result<void> send(const NetlinkBatch& batch) const;
  Fd fd_;
};

// The attributes of a message, behind a family header of the given size.
using NetlinkAttributes = std::map<uint16_t, std::span<const uint8_t>>;
NetlinkAttributes attributes_of(const nlmsghdr& message, size_t header_size);

std::string hex(std::span<const uint8_t> bytes);

}  // namespace isola::kernel
