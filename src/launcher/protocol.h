// What is said over DIR/launcher.sock (SOCK_SEQPACKET, one message per request, reply or event).
//
// A request is {u32 tag, u8 op, arguments} with descriptors where noted; its reply is {u32 tag, u8 status, …}: status 0
// and the result, or 1 and an Error. Tag 0 is never a request's: it marks an event, which the launcher sends unasked to
// the connection that owns the sandbox. Replies may come in another order than the requests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec.h"
#include "base/error.h"
#include "boundary/boundary.h"
#include "boundary/choice.h"
#include "boundary/latency.h"
#include "boundary/state.h"

namespace isola::launcher {

inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kMaxMessage = 160 << 10;

enum class Op : uint8_t {
  info,
  launch,
  link,
  kill,
  freeze,
  thaw,
  stats,
  list,
  park,
  own,
  admit,
  set_policy,
  gate_report,
  gate_events,
  checkpoint,
  images,
  drop_image,
  verify_image,
  pack_image,
  make_volume,
  resize_volume,
  drop_volume,
  volumes,
  certificate,
  vault_state,
  vault_unlock,
  vault_protect,
  vault_rotate,
  vault_reseal,
  vault_open,
  scan_channel,
  vault_signing,
  revoke,
  gate_ack,
  look_at_volume,
  sync_volume,
  shutdown,
  page_cache  // of what stats tells; asked for by itself, since it costs more
};
inline constexpr Op kLastOp = Op::page_cache;

// A volume in a sandbox.
struct VolumeMount {
  std::string id;
  std::string target;  // absolute path inside, of letters, digits and . _ - + @ /
  bool read_only = false;
  std::string part;  // a folder of it, relative, made if it is not there; empty: all of it
  bool operator==(const VolumeMount&) const = default;
};

// A bucket of an S3-compatible store in a sandbox (bucket.h).
struct BucketMount {
  std::string endpoint;  // "https://host[:port]"
  std::string bucket;
  std::string prefix;  // relative; empty: all of it
  std::string region;
  std::string target;  // as of a volume
  bool read_only = false;
  std::string sealed;   // "ACCESS_KEY_ID:SECRET_ACCESS_KEY", sealed to the vault's key
  bool inside = false;  // the endpoint may be somebody's inside: a private address, or this machine
  bool operator==(const BucketMount&) const = default;
};

// Descriptors: one detached mount per entry of shown_targets, in that order.
struct LaunchRequest {
  std::string digest;  // of the image's blob, in the machine-wide cache
  boundary::Limits limits;
  boundary::Choice boundary;     // of an image with memory: if nothing is said, the one that made it
  bool ephemeral = true;         // ends when the connection that asked for it does
  bool cold = false;             // never a parked one
  bool allow_unquotaed = false;  // --allow-unquotaed-disk
  std::vector<std::string> shown_targets;
  std::vector<VolumeMount> volumes;
  std::vector<BucketMount> buckets;
  // Instead of a digest: an image that a checkpoint made. With its memory, if it has any (then limits.open_files is the
  // image's), and unless `files_only`.
  std::string image;
  bool files_only = false;
  bool forked = false;  // one of several made of that image: the birth is said to be so
  std::string id;       // the sandbox's, for one that was paused; empty: a new one
  // The image is used up: its uppermost layer, if nobody else has it, becomes the sandbox's own instead of one more
  // below, and the image goes before the first instruction. Only with `id`.
  bool spend = false;
  int64_t life = 0;  // the caller's own number of what begins with this; `list` has it
  // Not said by the client: what root runs for itself, or with folders of the host, is nobody else's.
  bool roots_own = false;
  bool by_user = false;  // nor this: who asks is not root
};
// Descriptors: to the guest, from the guest.
struct LaunchReply {
  std::string id;
  Birth birth = Birth::cold;
  BoundaryKind kind = BoundaryKind::jail;
  boundary::Engine engine;
  Latency latency;
};

// Makes an image of a living sandbox. With memory, whoever holds the link has quiesced it (guest::Op::quiesce), and
// lets it go on afterwards (go_on) or asks for a new one, if the sandbox goes on. Without keep_running the reply comes
// when nothing of the sandbox is left but the image; its owner, if that is somebody else, hears of its end as well.
struct CheckpointRequest {
  std::string id;
  bool memory = true;
  bool keep_running = false;
  std::string image = {};  // its id, for a caller that wrote it down before; empty: any
};
struct CheckpointReply {
  std::string image;
  std::string parent;  // the image that the sandbox came from; empty: a template
  uint64_t memory_bytes = 0, layer_bytes = 0;
  Latency latency;
};

// images: a page of these after a name, as `list` has it.
struct ImageSummary {
  std::string id, sandbox, verb, parent, digest;
  int64_t created = 0;
  bool memory = false;
  uint32_t layers = 0;
  uint64_t memory_bytes = 0, layer_bytes = 0;
};
// drop_image: a name. Sandboxes made from it live on.
// verify_image: a name, u8 thorough, u8 whether a LaunchRequest follows, which must be one that would not be refused
// because of what the image is. Reads all of it; Code::corrupt names what is wrong. Not thorough, for who is about
// to use it: Code::unsupported says why this machine could not restore its memory.

// pack_image: a name, u8 whether it is to be packed or unpacked. A packed image takes little room, and no sandbox is
// made of it before it is unpacked. The reply comes when that is done; asking for what is so already changes nothing.
struct PackReply {
  uint64_t memory_bytes = 0, layer_bytes = 0;  // that it takes now
};

// make_volume, resize_volume: a name that the caller chose, u64 bytes. A volume outlives sandboxes and launchers.
// drop_volume: a name; refused while a sandbox has it.
// sync_volume: a name; answered when all that was written to it before is on disk.
// look_at_volume: a name; one of these, or not_found.
// volumes: a page of these after a name, as `list` has it.
struct VolumeSummary {
  std::string id;
  uint64_t limit = 0, used = 0;  // bytes
  uint32_t users = 0;            // sandboxes that have it
};

struct SandboxSummary {
  std::string id;
  std::string digest;
  State state = State::creating;
  Birth birth = Birth::cold;
  BoundaryKind kind = BoundaryKind::jail;
  bool parked = false, ephemeral = false;
  pid_t pid = 0;
  int64_t created = 0;  // seconds since 1970
  int64_t life = 0;     // as its launch said; 0: nothing, or a launcher wrote it down that knew no such numbers
};

struct StatsReply {
  uint64_t cpu_usec = 0, memory_bytes = 0, memory_peak_bytes = 0, oom_kills = 0, processes = 0;
  uint64_t disk_bytes = 0;
};

struct Ended {
  std::string id;
  EndReason reason = EndReason::killed;
  int status = 0;  // of process 1, as waitpid has it; -1: not known
  StatsReply usage;
};

struct InfoReply {
  std::string version;
  pid_t pid = 0;
  std::vector<boundary::Offer> boundaries;  // every one that there could be, the weakest first
  std::string layer_store;
  bool disk_enforced = false;
  std::string sharing;       // what a copy of a layer costs (image::Sharing)
  std::string checkpointer;  // "criu"; empty: no memory images here
  uint32_t live = 0, parked = 0, cleaning = 0;
  std::string protections;  // what every jail here has installed, as text
};

// park: a name (of a template, by digest, or of an image with memory), u32 how many, u8 a BoundaryKind.

// What a sandbox may reach (gate/policy.h has the language). A sandbox that was never given a policy has no network.
// The reply comes when the gate has it.
struct PolicyRequest {
  std::string id;
  std::string policy;                  // as text
  std::optional<std::string> ceiling;  // as text, empty: none; not given: as it was
  bool cut = false;                    // connections that the new policy denies end at once
  bool first = false;                  // only if it has none yet; else nothing is done
  // Which secrets go out with its requests, as JSON (vault/binding.h), their values sealed to the vault's key. Cipher
  // text all the way: it is opened in a process of its own and sealed again, to the gate's key.
  std::string bindings = {};
};
// Bindings that do not hold any longer, by their ids. The reply comes when the gate sends none of them any more; what
// else the sandbox may do stays as it is, and a set_policy that still has them does not bring them back.
struct RevokeRequest {
  std::string id;
  std::vector<std::string> bindings;
};
// The reply to a set_policy is a JSON object {binding: why} of those that could not be opened; they are left out, the
// rest is in force. Empty: all are.
// admit: a uid. From then on that user may ask for sandboxes, and nobody else but root; only root may say so.
// gate_report: an id; the reply is JSON text (gate/recorder.h).
// gate_events: a GateWatch; turns the connection into a stream: one reply with this request's tag per event, and its
// number. Whoever owns a sandbox and listens here keeps its policy (set_policy of anybody else is then refused,
// Code::denied). One listener keeps the records (a server): it gets every event of sandboxes that are open to the
// admitted user, also those from before it listened, again and again until it has acknowledged them (event_spool.h).
// Others look on: their numbers are 0, and what they have no room for comes in sum, as an event of kind `lost`.
struct GateWatch {
  bool keeps = false;
  uint64_t known = 0;  // the number of the last one that is in its ledger
};
void encode(Writer& out, const GateWatch& v);
void decode(Reader& in, GateWatch& v);
// gate_ack: a number; all events up to it are in the ledger. Of the one who keeps them, with the tag of its
// gate_events; there is no reply.

// scan_channel: the reply has a descriptor, a socket whose other end the gate has (gate/scan_frames.h). It closes when
// the gate is gone: then another is asked for.

// certificate: a sandbox; the reply is the PEM of the CA that its gate intercepts with.

// The vault's keys are the launcher's. `state` is everybody's to ask; `unlock` and `protect` (a passphrase; an empty
// one takes it away) and `rotate` (a RotatePhase) are root's.
struct VaultState {
  std::string open_key;  // 32 bytes: whoever has it can seal, and not open
  bool locked = false;   // nothing can be granted until somebody says the passphrase
  bool has_passphrase = false;
  bool rotating = false;
  std::string trouble;  // why there is no vault; empty: there is
};
enum class RotatePhase : uint8_t { begin, end };
// reseal: a list of sealed values; the reply has them in their order, sealed to the current key. Never their values.
// open: a sealed value; the reply is the value. For a command that cannot go without it.
// signing: a SigningWish; the reply is a JSON Web Key Set. The last two are root's.
enum class SigningWish : uint8_t { look, rotate, replace };

struct ShutdownRequest {
  bool end_all = false;  // else the sandboxes live on
};

void encode(Writer& out, const LaunchRequest& v);
void encode(Writer& out, const LaunchReply& v);
void encode(Writer& out, const CheckpointRequest& v);
void encode(Writer& out, const CheckpointReply& v);
void encode(Writer& out, const ImageSummary& v);
void encode(Writer& out, const PackReply& v);
void encode(Writer& out, const VolumeSummary& v);
void encode(Writer& out, const SandboxSummary& v);
void encode(Writer& out, const StatsReply& v);
void encode(Writer& out, const Ended& v);
void encode(Writer& out, const InfoReply& v);
void encode(Writer& out, const PolicyRequest& v);
void encode(Writer& out, const RevokeRequest& v);
void encode(Writer& out, const VaultState& v);
void encode(Writer& out, const Error& v);
void decode(Reader& in, LaunchRequest& v);
void decode(Reader& in, LaunchReply& v);
void decode(Reader& in, CheckpointRequest& v);
void decode(Reader& in, CheckpointReply& v);
void decode(Reader& in, ImageSummary& v);
void decode(Reader& in, PackReply& v);
void decode(Reader& in, VolumeSummary& v);
void decode(Reader& in, SandboxSummary& v);
void decode(Reader& in, StatsReply& v);
void decode(Reader& in, Ended& v);
void decode(Reader& in, InfoReply& v);
void decode(Reader& in, PolicyRequest& v);
void decode(Reader& in, RevokeRequest& v);
void decode(Reader& in, VaultState& v);
void decode(Reader& in, Error& v);

}  // namespace isola::launcher
