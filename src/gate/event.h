// What the gate tells about: a decision, or the end of a connection. Goes to the launcher, and from there to whoever
// listens (server, ledger, `isola net`).
#pragma once

#include <cstdint>
#include <string>

#include "base/codec.h"
#include "gate/policy.h"

namespace isola::gate {

struct Event {
  enum class Kind : uint8_t { allowed, denied, closed };
  enum class Protocol : uint8_t { tcp, dns };

  std::string sandbox;
  Kind kind = Kind::denied;
  Protocol protocol = Protocol::tcp;
  std::string name;     // empty: a literal address
  std::string address;  // the real one; empty if it did not come to that
  uint16_t port = 0;
  Reason reason = Reason::policy;
  std::string rule;            // what decided, in words
  bool host_verified = false;  // TLS said the name; else nobody knows which host was asked for inside the connection
  uint64_t up = 0, down = 0;   // bytes, at the end
  uint32_t count = 1;          // how often, where the same thing was denied again and again
  int64_t when = 0;            // milliseconds since 1970
};

void encode(Writer& out, const Event& event);
void decode(Reader& in, Event& event);
std::string_view to_string(Event::Kind kind);

}  // namespace isola::gate
