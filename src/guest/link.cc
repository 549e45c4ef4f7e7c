#include "guest/link.h"

#include <algorithm>

#include "guest/naming.h"

namespace isola::guest {

namespace {

constexpr size_t kMaxMessage = 4096;

struct Header {
  uint32_t length, channel;
  uint8_t type;
};

Header header_of(std::string_view bytes) {
  Reader in(bytes.substr(0, kHeader));
  Header h{};
  h.length = in.u32();
  h.channel = in.u32();
  h.type = in.u8();
  return h;
}

bool plausible(const Header& h) {
  return h.length <= kMaxPayload && h.type >= static_cast<uint8_t>(Type::hello) &&
         h.type <= static_cast<uint8_t>(kNaming) &&
         (h.channel == 0) == (h.type == static_cast<uint8_t>(Type::hello) || h.type == static_cast<uint8_t>(kNaming));
}

}  // namespace

Result<bool> FrameParser::next(std::string_view& input, Frame& frame) {
  if (bad_) return fail(Code::corrupt, "the link has lost its framing");
  if (deliver_held_) {
    held_.clear();
    deliver_held_ = false;
  }
  auto refuse = [&]() -> Result<bool> {
    bad_ = true;
    return fail(Code::corrupt, "malformed frame on the link");
  };
  auto take = [&](size_t want) {  // fill held_ up to `want` bytes
    size_t n = std::min(want - std::min(want, held_.size()), input.size());
    held_.append(input.substr(0, n));
    input.remove_prefix(n);
    return held_.size() >= want;
  };

  if (held_.empty() && input.size() >= kHeader) {  // the common case: whole frames, no copy
    Header h = header_of(input);
    if (!plausible(h)) return refuse();
    if (input.size() >= kHeader + h.length) {
      frame = {h.channel, static_cast<Type>(h.type), input.substr(kHeader, h.length)};
      input.remove_prefix(kHeader + h.length);
      return true;
    }
  }
  if (!take(kHeader)) return false;
  Header h = header_of(held_);
  if (!plausible(h)) return refuse();
  if (!take(kHeader + h.length)) return false;
  frame = {h.channel, static_cast<Type>(h.type), std::string_view(held_).substr(kHeader)};
  deliver_held_ = true;
  return true;
}

void FrameParser::reset() {
  held_ = {};
  deliver_held_ = bad_ = false;
}

void put_head(std::string& out, uint32_t channel, Type type, size_t length) {
  Writer header;
  header.u32(static_cast<uint32_t>(length));
  header.u32(channel);
  header.u8(static_cast<uint8_t>(type));
  out.append(header.data());
}

void put_frame(std::string& out, uint32_t channel, Type type, std::string_view a, std::string_view b) {
  put_head(out, channel, type, a.size() + b.size());
  out.append(a).append(b);
}

std::string encode_error(const Error& error) {
  Writer out;
  out.u8(0);
  out.u8(static_cast<uint8_t>(error.code));
  out.i32(error.sys_errno);
  out.str(std::string_view(error.message).substr(0, kMaxMessage));
  return out.take();
}

Result<std::string_view> decode_end(std::string_view payload) {
  Reader in(payload);
  uint8_t ok = in.u8();
  if (in.ok() && ok == 1) return in.rest();
  uint8_t code = in.u8();
  int32_t sys = in.i32();
  auto message = in.view();
  if (ok != 0 || !in.done() || code > static_cast<uint8_t>(Code::internal)) {
    return fail(Code::corrupt, "malformed end of a channel");
  }
  std::string text(message.substr(0, kMaxMessage));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';  // the guest's words reach terminals and logs
  }
  return fail(static_cast<Code>(code), std::move(text), sys);
}

}  // namespace isola::guest
