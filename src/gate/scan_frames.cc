#include "gate/scan_frames.h"

namespace isola::gate {

std::string encode_open(const ScanOpen& open) {
  Writer out;
  out.u8(static_cast<uint8_t>(ScanOp::open));
  out.u64(open.stream);
  out.strs(open.sandboxes);
  out.u64(open.offset);
  out.str(open.context);
  return out.take();
}

std::string encode_data_head(const ScanData& data) {
  Writer out;
  out.u8(static_cast<uint8_t>(ScanOp::data));
  out.u64(data.stream);
  out.u64(data.offset);
  out.u8(data.flags);
  return out.take();
}

std::string encode_cut(uint64_t stream) {
  Writer out;
  out.u8(static_cast<uint8_t>(ScanOp::cut));
  out.u64(stream);
  return out.take();
}

std::string encode_ring() { return std::string(1, static_cast<char>(ScanOp::ring)); }

std::string encode_laid(const ScanData& data, size_t length) {
  Writer out;
  out.u8(static_cast<uint8_t>(ScanOp::laid));
  out.u64(data.stream);
  out.u64(data.offset);
  out.u8(data.flags);
  out.u32(static_cast<uint32_t>(length));
  return out.take();
}

void encode(Writer& out, const ScanReply& reply) {
  out.u8(static_cast<uint8_t>(reply.what));
  out.u64(reply.stream);
  out.u64(reply.decided);
  out.u64(reply.seen);
  out.u32(reply.context);
  out.u32(static_cast<uint32_t>(reply.blots.size()));
  for (const auto& blot : reply.blots) out.u64(blot.offset), out.u32(blot.length);
  out.u32(static_cast<uint32_t>(reply.found.size()));
  for (const auto& found : reply.found) {
    out.str(found.binding);
    out.str(found.secret);
    out.u8(static_cast<uint8_t>(found.form));
    out.u64(found.offset);
    out.u32(found.count);
  }
  out.str(reply.why);
}

void decode(Reader& in, ScanReply& reply) {
  reply.what = static_cast<ScanAnswer>(in.u8());
  reply.stream = in.u64();
  reply.decided = in.u64();
  reply.seen = in.u64();
  reply.context = in.u32();
  for (uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
    ScanRange blot;
    blot.offset = in.u64();
    blot.length = in.u32();
    reply.blots.push_back(blot);
  }
  for (uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
    ScanFound found;
    found.binding = in.str();
    found.secret = in.str();
    found.form = static_cast<scan::Form>(in.u8());
    found.offset = in.u64();
    found.count = in.u32();
    reply.found.push_back(std::move(found));
  }
  reply.why = in.str();
}

}  // namespace isola::gate
