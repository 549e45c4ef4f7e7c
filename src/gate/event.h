// What the gate tells about: a decision, bytes that moved, or the end of a connection. Goes to the launcher, and from
// there to whoever listens (server, ledger, `isola net`).
//
// Bytes are told while a connection lives, and each of them once: the sum over all events is what moved. An event that
// nobody had room for is not forgotten but counted, with its bytes, in an event of kind `lost`.
#pragma once

#include <cstdint>
#include <string>

#include "base/codec.h"
#include "gate/policy.h"

namespace isola::gate {

struct Event {
  enum class Kind : uint8_t {
    allowed,
    denied,
    closed,
    moved,  // a connection that goes on
    lost,   // `count` events of this sandbox that could not be told
    // Of connections that are looked into:
    injected,  // a credential was set in a request
    redacted,  // one was found in an answer, and blotted out
    minted,    // one that does not last was made (by the launcher, for the gate)
    // Said by the launcher: a gate is gone, and may have taken the last moments' events with it. Without a sandbox: of
    // any.
    restarted,
    count_
  };
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
  uint64_t up = 0, down = 0;   // bytes since the last event of this connection
  uint32_t count = 1;          // how often, where the same thing happened again and again
  int64_t when = 0;            // milliseconds since 1970
  // Of a request that was denied or got a credential; never a value, and never a query.
  std::string method, path;
  std::string binding, secret;  // their names
  // For the recorder alone, not sent.
  bool own_address = false;        // of the host
  Reason hello = Reason::allowed;  // what a policy of names would have refused the first bytes for
};

// Events that could not be told, of one sandbox.
struct Lost {
  uint32_t count = 0;
  uint64_t up = 0, down = 0;
  void add(const Event& event);
  // The event that says so, and nothing is left.
  Event take(const std::string& sandbox);
};

void encode(Writer& out, const Event& event);
void decode(Reader& in, Event& event);
std::string_view to_string(Event::Kind kind);

}  // namespace isola::gate
