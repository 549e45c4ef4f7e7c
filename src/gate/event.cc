#include "gate/event.h"

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
}

void decode(Reader& in, Event& v) {
  v.sandbox = in.str();
  v.kind = static_cast<Event::Kind>(in.u8() % 3);
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
}

std::string_view to_string(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::allowed: return "allowed";
    case Event::Kind::denied: return "denied";
    case Event::Kind::closed: return "closed";
  }
  return "?";
}

}  // namespace isola::gate
