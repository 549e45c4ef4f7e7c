#include "gate/event.h"

#include <utility>

#include "base/clock.h"

namespace isola::gate {

void encode(Writer& out, const Event& v) {
  out.str(v.sandbox);
  out.u8(static_cast<uint8_t>(v.kind));
  out.u8(static_cast<uint8_t>(v.protocol));
  out.str(v.name);
  out.str(v.address);
  out.u16(v.port);
  out.u8(static_cast<uint8_t>(v.reason));
  out.str(v.rule);
  out.u8(v.host_verified);
  out.u64(v.up);
  out.u64(v.down);
  out.u32(v.count);
  out.i64(v.when);
  out.str(v.method);
  out.str(v.path);
  out.str(v.binding);
  out.str(v.secret);
}

void decode(Reader& in, Event& v) {
  v.sandbox = in.str();
  v.kind = static_cast<Event::Kind>(in.u8() % static_cast<uint8_t>(Event::Kind::count_));
  v.protocol = static_cast<Event::Protocol>(in.u8() % 2);
  v.name = in.str();
  v.address = in.str();
  v.port = in.u16();
  v.reason = static_cast<Reason>(in.u8() % static_cast<uint8_t>(Reason::count_));
  v.rule = in.str();
  v.host_verified = in.u8() != 0;
  v.up = in.u64();
  v.down = in.u64();
  v.count = in.u32();
  v.when = in.i64();
  v.method = in.str();
  v.path = in.str();
  v.binding = in.str();
  v.secret = in.str();
}

std::string_view to_string(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::allowed: return "allowed";
    case Event::Kind::denied: return "denied";
    case Event::Kind::closed: return "closed";
    case Event::Kind::moved: return "moved";
    case Event::Kind::lost: return "lost";
    case Event::Kind::injected: return "injected";
    case Event::Kind::redacted: return "redacted";
    case Event::Kind::minted: return "minted";
    case Event::Kind::restarted: return "restarted";
    case Event::Kind::count_: break;
  }
  return "?";
}

void Lost::add(const Event& event) {
  count += event.kind == Event::Kind::lost ? event.count : 1;
  up += event.up;
  down += event.down;
}

Event Lost::take(const std::string& sandbox) {
  const Lost all = std::exchange(*this, {});
  return {.sandbox = sandbox,
          .kind = Event::Kind::lost,
          .up = all.up,
          .down = all.down,
          .count = all.count,
          .when = milliseconds_now()};
}

}  // namespace isola::gate
