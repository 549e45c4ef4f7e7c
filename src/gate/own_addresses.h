// Which addresses lead back to this machine: then something of the host listens there, not of the outside.
//
//   ISOLA_TRY(auto own, OwnAddresses::open());
//   own.contains(address)                          // also one of a whole network that is local (AnyIP)
//
// The kernel is asked for the route each time: addresses come and go.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "base/fd.h"
#include "gate/address.h"

namespace isola::gate {

class OwnAddresses {
 public:
  static Result<OwnAddresses> open();  // of the calling thread's network namespace
  // True also where the kernel does not answer: what cannot be told is not let through.
  bool contains(const Address& address);

 private:
  explicit OwnAddresses(Fd netlink) : netlink_(std::move(netlink)) {}
  Fd netlink_;
  uint32_t asked_ = 0;
};

}  // namespace isola::gate
