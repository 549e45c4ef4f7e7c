// Real names to real addresses, by the servers that the host itself uses (its resolv.conf and hosts file).
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "gate/address.h"
#include "gate/loop.h"

namespace isola::gate {

struct Answer {
  enum class State : uint8_t {
    found,
    no_such_name,
    no_address,  // it exists, without an address
    failed,      // nobody answered, or not understandably
  };
  State state = State::failed;
  std::vector<Address> addresses;  // best first
  std::chrono::seconds ttl{0};
};

// The seam: tests bring their own.
class Upstream {
 public:
  virtual ~Upstream() = default;
  // `done` is called once, later or at once.
  virtual void look_up(const std::string& name, std::function<void(Answer)> done) = 0;
};

// By c-ares. `servers`: "192.0.2.53:5353,…" instead of the host's own.
Result<std::unique_ptr<Upstream>> make_upstream(Loop& loop, const std::string& servers = "");

}  // namespace isola::gate
