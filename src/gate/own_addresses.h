// Which addresses lead back to this machine: then something of the host listens there, not of the outside.
//
//   ISOLA_TRY(auto own, OwnAddresses::open());
//   own.contains(address)                          // also one of a whole network that is local (AnyIP)
//
// The kernel is asked for the route, as addresses come and go. What it said is kept until it tells of any change of its
// links, routes or rules (looked for at every question), and for a second at most.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "base/fd.h"
#include "gate/address.h"
#include "gate/loop.h"

namespace isola::gate {

class OwnAddresses {
 public:
  static constexpr size_t kMost = 4096;  // answers that are kept

  static Result<OwnAddresses> open();  // of the calling thread's network namespace
  // True also where the kernel does not answer: what cannot be told is not let through.
  bool contains(const Address& address);
  uint32_t asked() const { return asked_; }  // how often the kernel was
  size_t kept() const { return known_.size(); }

 private:
  OwnAddresses(Fd questions, Fd changes) : questions_(std::move(questions)), changes_(std::move(changes)) {}
  std::optional<bool> ask(const Address& address);
  bool changed();

  Fd questions_, changes_;
  uint32_t asked_ = 0;
  struct Hash {
    size_t operator()(const Address& address) const;
  };
  std::unordered_map<Address, bool, Hash> known_;
  Clock::time_point known_since_{};
};

}  // namespace isola::gate
