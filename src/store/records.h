// What the store keeps, as plain data. Times are milliseconds since 1970; 0 means "not set".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "boundary/boundary.h"
#include "boundary/state.h"

namespace isola::store {

using Millis = int64_t;
using Labels = std::map<std::string, std::string>;

// What ends a sandbox, and how.
enum class AtEnd : uint8_t { kill, pause, stop };

struct Lifetime {
  Millis deadline = 0;    // absolute; 0: never
  Millis idle_limit = 0;  // without activity for so long; 0: never
  AtEnd at_end = AtEnd::kill;
  bool auto_resume = false;  // a call on a paused one resumes it
  Millis timeout = 0;        // how long the deadline was away when it was set: a resume sets it anew; 0: never
  Millis delete_after = 0;   // paused for so long, it ends for good; 0: never
  Millis freeze_after = 0;   // without activity for so long, its processes stand still until the next; 0: never
  Millis archive_after = 0;  // paused for so long, what is kept of it is packed; 0: never
  bool operator==(const Lifetime&) const = default;
};

// What happens to the work when a budget is spent.
enum class AtLimit : uint8_t { end, freeze, pause };

// What may be spent. 0: no limit.
struct Budget {
  double cpu_seconds = 0;
  double wall_seconds = 0;
  uint64_t commands = 0;
  uint64_t bytes_out = 0;
  double money = 0;  // in the currency of the price sheet
  AtLimit at_limit = AtLimit::end;
  bool operator==(const Budget&) const = default;
};

// A bucket of an S3-compatible store; the secret is the project's, by name.
struct BucketUse {
  std::string endpoint, bucket, prefix, region, secret;
  bool operator==(const BucketUse&) const = default;
};

// A volume in a sandbox, or a bucket.
struct VolumeUse {
  std::string volume;  // its id
  std::string path;    // where, inside
  bool read_only = false;
  std::string subpath;                   // a folder of it; empty: all of it
  std::string name;                      // the volume's, which it keeps
  std::optional<BucketUse> bucket = {};  // then there is no volume
  bool operator==(const VolumeUse&) const = default;
};

// Of memory and of disk, in bytes: sums of them stay far from where 64 bits end.
inline constexpr uint64_t kLargestLimit = uint64_t{1} << 50;

struct SandboxRecord {
  std::string id;
  std::string project;
  std::string name;  // unique among the project's living sandboxes; empty: none
  std::string key;   // of get-or-create; unique likewise
  std::string task, actor;
  std::string template_name, digest;
  BoundaryKind boundary = BoundaryKind::jail;
  boundary::Engine engine;  // that it was last started with
  Birth birth = Birth::cold;
  State state = State::creating;
  EndReason end_reason = EndReason::killed;  // meaningful once state is ending or ended
  std::string end_detail;                    // one sentence for a person, e.g. which budget; also why it is frozen
  Millis created = 0, ended = 0, last_active = 0;
  boundary::Limits limits;
  Lifetime lifetime;
  Budget budget;
  Labels metadata, env;
  std::vector<std::string> on_create, on_resume;  // shell commands
  std::string probe;                              // shell command: exit 0 = ready
  std::string traffic_token;                      // opens its ports; empty: public
  bool secure = true;
  std::string network;      // its policy, as text; empty: none at all
  bool one_shot = false;    // made for one run, which nobody takes up again
  std::string made_by;      // the key that asked for it: known, where `actor` is only claimed
  std::string image;        // paused, stopped, archived, or on the way back: what it is made from again
  Millis asleep = 0;        // since when it is paused, stopped or archived
  uint64_t cpu_before = 0;  // microseconds that it had used when it was last resumed: the kernel counts anew from there
  std::vector<VolumeUse> volumes;
  std::string user, cwd;     // of commands that name none; empty: the template's usual ones
  bool granted = false;      // bindings of its project and its template hold for it, too
  bool keep_grants = false;  // it has them, and its own, also after it was resumed
  bool exposed = false;      // a value of the vault was given into it
  bool screened = false;     // something was bound to it once: what leaves it is searched, whatever was revoked since
};

// What is kept of sandboxes. A pause belongs to its sandbox, a snapshot to the project, what is spent is about to be
// removed, and a warm one is the server's own: what sandboxes of a template begin with. A step is what a build had
// after one of its steps, by the step's key as its name; what was built is what sandboxes of a template are made of.
enum class ImageKind : uint8_t { pause, snapshot, spent, warm, step, built };

struct ImageRecord {
  std::string id;  // the launcher's
  std::string project;
  ImageKind kind = ImageKind::snapshot;
  std::string name;     // of a snapshot: unique among the project's; empty: none
  std::string sandbox;  // what it was made of
  std::string parent;   // the image that that came from; empty: a template
  std::string template_name, digest;
  bool memory = false;
  uint64_t memory_bytes = 0, layer_bytes = 0;
  Millis created = 0, last_used = 0;
  Millis expires_after = 0;  // its last use; 0: never
  boundary::Limits limits;   // of the sandbox at the time
  Labels env, metadata;
  std::vector<VolumeUse> volumes;  // that the sandbox had
  std::string user, cwd;           // likewise
  bool exposed = false;            // a value of the vault may be in its memory
  uint64_t bytes() const { return memory_bytes + layer_bytes; }
};

// Files that outlive every sandbox. One that is being made or that is gone is nobody's: a server that starts removes
// it.
enum class VolumeState : uint8_t { making, there, gone };

struct VolumeRecord {
  std::string id;  // `v` + 20 of [a-z0-9]
  std::string project;
  std::string name;   // unique among the project's
  uint64_t size = 0;  // bytes that it may hold: what counts against the project's limit
  Millis created = 0;
  Labels labels;
  VolumeState state = VolumeState::making;
};

// Somebody outside who is told what happens to a project's sandboxes.
struct WebhookRecord {
  std::string id;  // `w` + 20 of [a-z0-9]
  std::string project;
  std::string name;
  std::string url;
  bool enabled = true;
  std::vector<std::string> events;  // words of the dialect that made it
  std::string secret;               // what deliveries are signed with: both sides have it
  Millis created = 0;
  uint64_t told = 0;  // the ledger's entry up to which everything was told, or given up
};
inline constexpr size_t kMostWebhooks = 20;  // of one project

// A template that was built by a project. Its tags say which build is meant.
struct TemplateRecord {
  std::string id;  // `t` + 20 of [a-z0-9]
  std::string project;
  std::string name;  // unique among the project's
  Millis created = 0;
  bool published = false;  // others may make sandboxes of it
};

enum class BuildState : uint8_t { waiting, building, ready, failed };

struct BuildRecord {
  std::string id;  // `b` + 20 of [a-z0-9]
  std::string template_id, project;
  BuildState state = BuildState::waiting;
  std::string why, step;  // of one that failed
  std::string spec;       // what was asked for, as JSON
  // What its sandboxes are made of: an image, or where there is none the template of that digest.
  std::string image, digest, base;
  bool memory = false;  // the image has processes
  Labels env;
  std::string user, cwd;
  double cpus = 0;  // 0: the server's own
  uint64_t memory_limit = 0;
  uint64_t disk = 0;  // at least
  Millis created = 0, finished = 0;
};

struct BuildLine {
  uint64_t number = 0;
  Millis at = 0;
  std::string level, step, text;
};

// A secret as it is kept: sealed to the vault's key, so that nobody who has the store can read it.
struct SecretRecord {
  std::string project;
  std::string name;      // unique among the project's
  uint64_t version = 1;  // counts the values that it had; only the newest is kept
  std::string sealed;    // vault::seal_value, or vault::seal_source
  std::string source;    // where its value comes from, as anybody may see it (JSON); empty: from the store
  Millis created = 0, changed = 0;
  std::string actor;    // who brought the newest value
  std::string made_by;  // with which key
  Labels metadata;      // of its owner's, for dialects that have such
  std::string sandbox;  // of this one alone, and goes with it (NetworkGrants); empty: the project's
};

// For whom a binding is.
enum class BindingScope : uint8_t { project, of_template, sandbox };

struct BindingRecord {
  std::string id;  // `g` + 20 of [a-z0-9]
  std::string project;
  BindingScope scope = BindingScope::sandbox;
  std::string subject;  // a template's name, a sandbox's id; empty: the project's
  std::string secret;   // by name
  std::string body;     // the binding as JSON (vault/binding.h), without its value
  Millis expires = 0;   // 0: with its subject
  Millis created = 0;
  std::string actor, made_by;
  bool of_network = false;  // came with what was said about a sandbox's network, and is replaced with it
};
inline constexpr size_t kMostSecrets = 4096;   // of one project
inline constexpr size_t kMostBindings = 4096;  // likewise

// What a sandbox's network brings along: its bindings, and the values among them that are nobody else's.
struct NetworkGrants {
  std::vector<SecretRecord> secrets;
  std::vector<BindingRecord> bindings;
};

// Limits of one tenant. 0: no limit.
struct ProjectLimits {
  uint32_t live_sandboxes = 0;
  double cpus = 0;
  uint64_t memory = 0, disk = 0;
  double creates_per_second = 0;
  uint64_t stored = 0;                         // bytes of images and volumes
  BoundaryKind boundary = BoundaryKind::jail;  // at least
  bool operator==(const ProjectLimits&) const = default;
};

// What of its limits a project holds now. A sandbox that is creating, running, frozen or ending holds all of its own;
// one that is paused, stopped or archived holds only its disk; an ended one nothing.
struct ProjectUse {
  uint32_t live_sandboxes = 0;
  double cpus = 0;
  uint64_t memory = 0, disk = 0;
  uint64_t stored = 0;  // bytes of its paused sandboxes and snapshots, and the sizes of its volumes
  bool operator==(const ProjectUse&) const = default;
};
bool is_live(State state);
// Nothing of it runs, and it can be made again from its image.
bool is_asleep(State state);

struct ProjectRecord {
  std::string id;    // `p` + 20 of [a-z0-9], or "default"
  std::string name;  // unique
  Millis created = 0;
  ProjectLimits limits;
  Budget budget;
  std::string ceiling;         // a network policy that no sandbox of it exceeds; empty: none
  bool allow_exposed = false;  // values of its secrets may be given into sandboxes, for one command
};

// A task is a word that callers choose; only those that were given a budget are kept.
struct TaskRecord {
  std::string project, task;
  Budget budget;
};

enum class Scope : uint8_t { read, use, admin };  // each includes the ones before it

struct KeyRecord {
  std::string id;  // `k` + 12 of [a-z0-9]: names the key without being it
  std::string project;
  std::string name;
  std::string hash;    // SHA-256 of the whole key, lower-case hex
  std::string prefix;  // its first 8 characters, to recognise it in a list
  Scope scope = Scope::use;
  Millis created = 0, revoked = 0, last_used = 0;
};

std::string_view to_string(AtEnd action);
std::string_view to_string(AtLimit action);
std::string_view to_string(Scope scope);
std::string_view to_string(ImageKind kind);
std::string_view to_string(VolumeState state);
std::string_view to_string(BuildState state);
std::string_view to_string(BindingScope scope);
std::optional<AtEnd> parse_at_end(std::string_view word);
std::optional<AtLimit> parse_at_limit(std::string_view word);
std::optional<Scope> parse_scope(std::string_view word);
std::optional<ImageKind> parse_image_kind(std::string_view word);
std::optional<VolumeState> parse_volume_state(std::string_view word);
std::optional<BuildState> parse_build_state(std::string_view word);
std::optional<BindingScope> parse_binding_scope(std::string_view word);

}  // namespace isola::store
