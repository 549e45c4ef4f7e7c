#include "launcher/protocol.h"

#include <algorithm>

namespace isola::launcher {

namespace {

// An enum from outside: anything past `last` makes the reader bad by way of a value that cannot be, so callers see
// corrupt input instead of an enum without a name.
template <typename E>
E bounded(uint8_t value, E last, Reader& in) {
  if (value <= static_cast<uint8_t>(last)) return static_cast<E>(value);
  while (in.ok()) in.u64();
  return last;
}

void encode_limits(Writer& out, const boundary::Limits& v) {
  // Not a number, or negative: 0, which nobody grants.
  out.u64(v.cpus > 0 ? static_cast<uint64_t>(std::min(v.cpus, 1e9) * 1000 + 0.5) : 0);
  out.u64(v.memory);
  out.u32(v.pids);
  out.u64(v.disk);
  out.u32(v.open_files);
  out.u64(v.io_bytes_per_second);
  out.i64(v.wall_time.count());
}

void decode_limits(Reader& in, boundary::Limits& v) {
  v.cpus = static_cast<double>(in.u64()) / 1000;
  v.memory = in.u64();
  v.pids = in.u32();
  v.disk = in.u64();
  v.open_files = in.u32();
  v.io_bytes_per_second = in.u64();
  v.wall_time = std::chrono::milliseconds(in.i64());
}

void encode_engine(Writer& out, const boundary::Engine& v) {
  out.str(v.name);
  out.str(v.version);
  out.u8(v.accelerated);
}

void decode_engine(Reader& in, boundary::Engine& v) {
  v.name = in.str();
  v.version = in.str();
  v.accelerated = in.u8() != 0;
}

void encode_latency(Writer& out, const Latency& v) {
  for (int i = 0; i < static_cast<int>(Step::count_); ++i) out.i64(v.of(static_cast<Step>(i)).count());
}

void decode_latency(Reader& in, Latency& v) {
  for (int i = 0; i < static_cast<int>(Step::count_); ++i)
    v.add(static_cast<Step>(i), std::chrono::nanoseconds(in.i64()));
}

}  // namespace

void encode(Writer& out, const LaunchRequest& v) {
  out.str(v.digest);
  encode_limits(out, v.limits);
  out.u8(static_cast<uint8_t>(v.boundary.wish));
  out.u8(static_cast<uint8_t>(v.boundary.at_least));
  out.u8(v.ephemeral);
  out.u8(v.cold);
  out.u8(v.allow_unquotaed);
  out.strs(v.shown_targets);
  out.u32(static_cast<uint32_t>(v.volumes.size()));
  for (const auto& volume : v.volumes) {
    out.str(volume.id);
    out.str(volume.target);
    out.u8(volume.read_only);
    out.str(volume.part);
  }
  out.u32(static_cast<uint32_t>(v.buckets.size()));
  for (const auto& bucket : v.buckets) {
    for (const auto* word : {&bucket.endpoint, &bucket.bucket, &bucket.prefix, &bucket.region, &bucket.target})
      out.str(*word);
    out.u8(bucket.read_only);
    out.str(bucket.sealed);
    out.u8(bucket.inside);
  }
  out.str(v.image);
  out.u8(v.files_only);
  out.u8(v.forked);
  out.str(v.id);
  out.u8(v.spend);
  out.i64(v.life);
}

void decode(Reader& in, LaunchRequest& v) {
  v.digest = in.str();
  decode_limits(in, v.limits);
  v.boundary.wish = bounded(in.u8(), BoundaryWish::strongest, in);
  v.boundary.at_least = bounded(in.u8(), BoundaryKind::microvm, in);
  v.ephemeral = in.u8() != 0;
  v.cold = in.u8() != 0;
  v.allow_unquotaed = in.u8() != 0;
  v.shown_targets = in.strs();
  for (uint32_t i = 0, count = in.u32(); i < count && in.ok(); ++i) {
    auto& volume = v.volumes.emplace_back();
    volume.id = in.str();
    volume.target = in.str();
    volume.read_only = in.u8() != 0;
    volume.part = in.str();
  }
  for (uint32_t i = 0, count = in.u32(); i < count && in.ok(); ++i) {
    auto& bucket = v.buckets.emplace_back();
    for (auto* word : {&bucket.endpoint, &bucket.bucket, &bucket.prefix, &bucket.region, &bucket.target})
      *word = in.str();
    bucket.read_only = in.u8() != 0;
    bucket.sealed = in.str();
    bucket.inside = in.u8() != 0;
  }
  v.image = in.str();
  v.files_only = in.u8() != 0;
  v.forked = in.u8() != 0;
  v.id = in.str();
  v.spend = in.u8() != 0;
  v.life = in.i64();
}

void encode(Writer& out, const LaunchReply& v) {
  out.str(v.id);
  out.u8(static_cast<uint8_t>(v.birth));
  out.u8(static_cast<uint8_t>(v.kind));
  encode_engine(out, v.engine);
  encode_latency(out, v.latency);
}

void decode(Reader& in, LaunchReply& v) {
  v.id = in.str();
  v.birth = bounded(in.u8(), Birth::forked, in);
  v.kind = bounded(in.u8(), BoundaryKind::microvm, in);
  decode_engine(in, v.engine);
  decode_latency(in, v.latency);
}

void encode(Writer& out, const CheckpointRequest& v) {
  out.str(v.id);
  out.u8(v.memory);
  out.u8(v.keep_running);
  out.str(v.image);
}

void decode(Reader& in, CheckpointRequest& v) {
  v.id = in.str();
  v.memory = in.u8() != 0;
  v.keep_running = in.u8() != 0;
  v.image = in.str();
}

void encode(Writer& out, const CheckpointReply& v) {
  out.str(v.image);
  out.str(v.parent);
  out.u64(v.memory_bytes);
  out.u64(v.layer_bytes);
  encode_latency(out, v.latency);
}

void decode(Reader& in, CheckpointReply& v) {
  v.image = in.str();
  v.parent = in.str();
  v.memory_bytes = in.u64();
  v.layer_bytes = in.u64();
  decode_latency(in, v.latency);
}

void encode(Writer& out, const ImageSummary& v) {
  for (const auto* text : {&v.id, &v.sandbox, &v.verb, &v.parent, &v.digest}) out.str(*text);
  out.i64(v.created);
  out.u8(v.memory);
  out.u32(v.layers);
  out.u64(v.memory_bytes);
  out.u64(v.layer_bytes);
}

void decode(Reader& in, ImageSummary& v) {
  for (auto* text : {&v.id, &v.sandbox, &v.verb, &v.parent, &v.digest}) *text = in.str();
  v.created = in.i64();
  v.memory = in.u8() != 0;
  v.layers = in.u32();
  v.memory_bytes = in.u64();
  v.layer_bytes = in.u64();
}

void encode(Writer& out, const PackReply& v) {
  out.u64(v.memory_bytes);
  out.u64(v.layer_bytes);
}
void decode(Reader& in, PackReply& v) {
  v.memory_bytes = in.u64();
  v.layer_bytes = in.u64();
}

void encode(Writer& out, const VolumeSummary& v) {
  out.str(v.id);
  out.u64(v.limit);
  out.u64(v.used);
  out.u32(v.users);
}

void decode(Reader& in, VolumeSummary& v) {
  v.id = in.str();
  v.limit = in.u64();
  v.used = in.u64();
  v.users = in.u32();
}

void encode(Writer& out, const SandboxSummary& v) {
  out.str(v.id);
  out.str(v.digest);
  out.u8(static_cast<uint8_t>(v.state));
  out.u8(static_cast<uint8_t>(v.birth));
  out.u8(static_cast<uint8_t>(v.kind));
  out.u8(v.parked);
  out.u8(v.ephemeral);
  out.i32(v.pid);
  out.i64(v.created);
  out.i64(v.life);
}

void decode(Reader& in, SandboxSummary& v) {
  v.id = in.str();
  v.digest = in.str();
  v.state = bounded(in.u8(), State::ended, in);
  v.birth = bounded(in.u8(), Birth::forked, in);
  v.kind = bounded(in.u8(), BoundaryKind::microvm, in);
  v.parked = in.u8() != 0;
  v.ephemeral = in.u8() != 0;
  v.pid = in.i32();
  v.created = in.i64();
  v.life = in.i64();
}

void encode(Writer& out, const StatsReply& v) {
  for (uint64_t n : {v.cpu_usec, v.memory_bytes, v.memory_peak_bytes, v.oom_kills, v.processes, v.disk_bytes})
    out.u64(n);
}

void decode(Reader& in, StatsReply& v) {
  for (uint64_t* n : {&v.cpu_usec, &v.memory_bytes, &v.memory_peak_bytes, &v.oom_kills, &v.processes, &v.disk_bytes})
    *n = in.u64();
}

void encode(Writer& out, const Ended& v) {
  out.str(v.id);
  out.u8(static_cast<uint8_t>(v.reason));
  out.i32(v.status);
  encode(out, v.usage);
}

void decode(Reader& in, Ended& v) {
  v.id = in.str();
  v.reason = bounded(in.u8(), EndReason::host_restart, in);
  v.status = in.i32();
  decode(in, v.usage);
}

void encode(Writer& out, const InfoReply& v) {
  out.str(v.version);
  out.i32(v.pid);
  out.u32(static_cast<uint32_t>(v.boundaries.size()));
  for (const auto& offer : v.boundaries) {
    out.u8(static_cast<uint8_t>(offer.kind));
    out.u8(offer.offered);
    encode_engine(out, offer.engine);
    out.str(offer.detail);
    out.str(offer.missing);
  }
  out.str(v.layer_store);
  out.u8(v.disk_enforced);
  out.str(v.sharing);
  out.str(v.checkpointer);
  for (uint32_t n : {v.live, v.parked, v.cleaning}) out.u32(n);
  out.str(v.protections);
}

void decode(Reader& in, InfoReply& v) {
  v.version = in.str();
  v.pid = in.i32();
  for (uint32_t i = 0, count = in.u32(); i < count && in.ok(); ++i) {
    auto& offer = v.boundaries.emplace_back();
    offer.kind = bounded(in.u8(), BoundaryKind::microvm, in);
    offer.offered = in.u8() != 0;
    decode_engine(in, offer.engine);
    offer.detail = in.str();
    offer.missing = in.str();
  }
  v.layer_store = in.str();
  v.disk_enforced = in.u8() != 0;
  v.sharing = in.str();
  v.checkpointer = in.str();
  for (uint32_t* n : {&v.live, &v.parked, &v.cleaning}) *n = in.u32();
  v.protections = in.str();
}

void encode(Writer& out, const PolicyRequest& v) {
  out.str(v.id);
  out.str(v.policy);
  out.u8(v.ceiling.has_value());
  out.str(v.ceiling.value_or(""));
  out.u8(v.cut);
  out.u8(v.first);
  out.str(v.bindings);
}
void decode(Reader& in, PolicyRequest& v) {
  v.id = in.str();
  v.policy = in.str();
  bool given = in.u8() != 0;
  v.ceiling = in.str();
  if (!given) v.ceiling.reset();
  v.cut = in.u8() != 0;
  v.first = in.u8() != 0;
  v.bindings = in.str();
}

void encode(Writer& out, const GateWatch& v) {
  out.u8(v.keeps);
  out.u64(v.known);
}
void decode(Reader& in, GateWatch& v) {
  v.keeps = in.u8() != 0;
  v.known = in.u64();
}
void encode(Writer& out, const RevokeRequest& v) {
  out.str(v.id);
  out.strs(v.bindings);
}
void decode(Reader& in, RevokeRequest& v) {
  v.id = in.str();
  v.bindings = in.strs();
}

void encode(Writer& out, const VaultState& v) {
  out.str(v.open_key);
  out.u8(v.locked);
  out.u8(v.has_passphrase);
  out.u8(v.rotating);
  out.str(v.trouble);
}
void decode(Reader& in, VaultState& v) {
  v.open_key = in.str();
  v.locked = in.u8() != 0;
  v.has_passphrase = in.u8() != 0;
  v.rotating = in.u8() != 0;
  v.trouble = in.str();
}

void encode(Writer& out, const Error& v) {
  out.u8(static_cast<uint8_t>(v.code));
  out.i32(v.sys_errno);
  out.str(v.message);
}

void decode(Reader& in, Error& v) {
  v.code = bounded(in.u8(), Code::internal, in);
  v.sys_errno = in.i32();
  v.message = in.str();
}

}  // namespace isola::launcher
