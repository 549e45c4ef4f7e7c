// What the server remembers: sandboxes, projects, API keys. SQLite implements it (sqlite_store.h), PostgreSQL can.
//
// Every call is one transaction: when it has returned well, the change survives kill -9; when it has failed, nothing of
// it happened. All of it may be called from any thread; a call takes some tens of microseconds, a list more.
//
//   ISOLA_CHECK(store.insert_sandbox(record));                       // exists: name or key taken; exhausted: a limit
//   ISOLA_CHECK(store.set_state(id, State::running));
//   ISOLA_CHECK(store.set_end(id, EndReason::deadline, "", now));
//
// The codes: not_found (no such id, or no such project), exists (a name or key is taken), exhausted (a limit of the
// project, or the disk is full), invalid (makes no sense: an ended sandbox cannot change, text that is not UTF-8).
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "store/records.h"

namespace isola::store {

struct SandboxFilter {
  std::string project;        // empty: of all projects
  std::vector<State> states;  // empty: any
  Labels metadata;            // each of these, with exactly this value
  std::string name_prefix;
  std::string task;  // empty: any
  // Not found by then: Code::timeout. A question with this waits for others with it, and for no other question.
  std::optional<std::chrono::steady_clock::time_point> until = {};

  // It may have to look at all that the project ever had; any other page goes by an index.
  bool searches() const { return !metadata.empty() || !name_prefix.empty() || !task.empty(); }
};

// One page of a list, newest first. `next` continues it: sandboxes made meanwhile do not shift what follows. Empty:
// that was all.
struct SandboxPage {
  std::vector<SandboxRecord> sandboxes;
  std::string next;
};

struct Why {
  EndReason reason = EndReason::killed;
  std::string detail;
};

inline constexpr size_t kMostTasks = 10'000;  // with a budget, of one project: all of them are kept in memory

// What a caller may change of a living sandbox: all of what is given, or nothing.
struct SandboxChange {
  std::optional<Lifetime> lifetime = {};
  std::optional<Labels> metadata = {};
  std::optional<std::string> network = {};
  std::optional<Budget> budget = {};
  std::optional<Labels> env = {};
  std::optional<bool> granted = {};
  std::optional<bool> keep_grants = {};
  std::optional<bool> exposed = {};
  std::optional<bool> screened = {};
};

// The same of a project. What is not given stays as it is, whoever changes that at the same time.
struct ProjectChange {
  std::optional<ProjectLimits> limits = {};
  std::optional<Budget> budget = {};
  std::optional<std::string> ceiling = {};
  std::optional<bool> allow_exposed = {};
};

using Touched = std::vector<std::pair<std::string, Millis>>;  // id, when

class Store {
 public:
  virtual ~Store() = default;

  // --- sandboxes ---
  // Refused in the same transaction: a name or a key that a sandbox of the project which has not ended holds (exists),
  // what would take the project over one of its limits (exhausted), and volumes that the project does not have
  // (not_found).
  virtual Result<void> insert_sandbox(const SandboxRecord& sandbox) = 0;
  // A sandbox that comes back from paused, stopped or archived is held against the project's limits again (exhausted).
  // `to` may not be ended: that is set_end. `why` is kept with ending and frozen. What is ending only ends (invalid).
  virtual Result<void> set_state(const std::string& id, State to, const Why& why = {}) = 0;
  // The first end stands: setting it again changes nothing and is no error. Frees the name and the key.
  virtual Result<void> set_end(const std::string& id, EndReason reason, const std::string& detail, Millis when) = 0;
  // In one transaction.
  virtual Result<void> change_sandbox(const std::string& id, const SandboxChange& change) = 0;
  virtual Result<void> set_lifetime(const std::string& id, const Lifetime& lifetime) = 0;
  virtual Result<void> set_metadata(const std::string& id, const Labels& metadata) = 0;
  virtual Result<void> set_network(const std::string& id, const std::string& network) = 0;
  virtual Result<void> set_budget(const std::string& id, const Budget& budget) = 0;
  // last_active of many at once, never backwards; unknown and ended ones are passed over.
  virtual Result<void> touch(const Touched& sandboxes) = 0;
  virtual Result<SandboxRecord> find_sandbox(const std::string& id) = 0;
  // The last of that name that has ended.
  virtual Result<SandboxRecord> find_ended(const std::string& project, const std::string& name) = 0;
  // Of those that have one, living or ended; by id.
  virtual Result<Labels> names_of(const std::vector<std::string>& ids) = 0;
  // `cursor`: empty, or `next` of the page before. invalid: not one of ours.
  virtual Result<SandboxPage> list_sandboxes(const SandboxFilter& filter, const std::string& cursor, size_t limit) = 0;
  // All that have not ended: what a server that starts has to look after.
  virtual Result<std::vector<SandboxRecord>> living() = 0;
  // Removes at most `most` records that ended before `when`; gives how many.
  virtual Result<size_t> forget_ended_before(Millis when, size_t most) = 0;

  // --- images --- (what is kept of sandboxes; the bytes are the launcher's)
  // exists: the name is taken, by a snapshot or a template; exhausted: the project's limit of stored bytes.
  // `instead_of`: a snapshot that is spent in the same breath.
  virtual Result<void> insert_snapshot(const ImageRecord& image, const std::string& instead_of = {}) = 0;
  // The sandbox sleeps from now on, and this is what it is made from again. Its image before, if it had one, is spent.
  // `why` is kept with it. What is ending only ends (not_found), here and below.
  virtual Result<void> set_asleep(const std::string& id, State to, const ImageRecord& image, Millis when,
                                  const std::string& why = {}) = 0;
  // It sleeps, to be made again from a snapshot; a pause that it had is spent.
  virtual Result<void> set_rolled_back(const std::string& id, const std::string& snapshot, Millis when) = 0;
  // It sleeps as before, but what is kept of it takes so many bytes now: packed (archived), or unpacked again.
  virtual Result<void> set_packed(const std::string& id, State to, uint64_t memory_bytes, uint64_t layer_bytes) = 0;
  // It runs again: what it was made from is spent, if that was a pause.
  virtual Result<void> set_awake(const std::string& id, Birth birth, const Lifetime& lifetime, uint64_t cpu_before,
                                 Millis when) = 0;
  virtual Result<ImageRecord> find_image(const std::string& id) = 0;
  virtual Result<ImageRecord> find_snapshot(const std::string& project, const std::string& id_or_name) = 0;
  // Newest first; `sandbox` empty: of all. `cursor` as with sandboxes.
  struct SnapshotPage {
    std::vector<ImageRecord> snapshots;
    std::string next;
  };
  virtual Result<SnapshotPage> list_snapshots(const std::string& project, const std::string& sandbox,
                                              const std::string& cursor, size_t limit) = 0;
  virtual Result<std::vector<ImageRecord>> all_images() = 0;
  // Snapshots whose time after their last use is over.
  virtual Result<std::vector<ImageRecord>> expired_images(Millis now) = 0;
  virtual Result<void> touch_image(const std::string& id, Millis when) = 0;
  // A snapshot goes. unavailable (EBUSY): a sandbox that sleeps is made of it.
  virtual Result<void> spend_snapshot(const std::string& id) = 0;
  // Before the launcher makes it, so that nothing is left behind that nobody knows.
  virtual Result<void> insert_warm(const ImageRecord& image) = 0;
  virtual Result<void> spend_warm(const std::string& id) = 0;    // idempotent
  virtual Result<void> forget_image(const std::string& id) = 0;  // its bytes are gone; idempotent

  // --- templates that were built ---
  virtual Result<void> insert_template(const TemplateRecord& record) = 0;  // exists: as a snapshot's
  virtual Result<TemplateRecord> find_template(const std::string& project, const std::string& id_or_name) = 0;
  // Whoever's it is, by its id or as project/name: a name alone is nobody's but one's own.
  virtual Result<TemplateRecord> find_published(const std::string& id_or_path) = 0;
  virtual Result<void> set_published(const std::string& id, bool published) = 0;
  virtual Result<std::vector<TemplateRecord>> list_templates(const std::string& project) = 0;  // by name
  virtual Result<void> remove_template(const std::string& id) = 0;                             // with its builds
  // New, or changed; with the tags that mean it from then on: both or neither.
  virtual Result<void> put_build(const BuildRecord& build, const std::vector<std::string>& tags = {}) = 0;
  virtual Result<BuildRecord> find_build(const std::string& template_id, const std::string& id) = 0;
  virtual Result<std::vector<BuildRecord>> list_builds(const std::string& template_id) = 0;  // newest first
  // All but the newest so many: those that are over, and that no tag means.
  virtual Result<void> forget_old_builds(const std::string& template_id, size_t keep) = 0;
  // The build that a tag means; Code::not_found.
  virtual Result<BuildRecord> tagged_build(const std::string& template_id, const std::string& tag) = 0;
  virtual Result<void> put_tags(const std::string& template_id, const std::vector<std::string>& tags,
                                const std::string& build) = 0;
  virtual Result<void> remove_tags(const std::string& template_id, const std::vector<std::string>& tags) = 0;
  virtual Result<std::map<std::string, std::string>> tags_of(const std::string& template_id) = 0;  // tag → build
  virtual Result<void> add_build_lines(const std::string& build, const std::vector<BuildLine>& lines) = 0;
  virtual Result<std::vector<BuildLine>> build_lines(const std::string& build, uint64_t from, size_t most) = 0;
  // At the start: nobody builds them any more.
  virtual Result<void> fail_unfinished_builds(const std::string& why, Millis when) = 0;
  // Images of builds: steps and what came out.
  virtual Result<void> insert_build_image(const ImageRecord& image) = 0;  // exhausted: the limit of stored bytes
  virtual Result<void> spend_step(const std::string& id) = 0;             // it is lost; idempotent
  virtual Result<ImageRecord> find_step(const std::string& project, const std::string& key) = 0;
  // Used last before `when`, and no tag means a build that needs it: they are spent.
  virtual Result<std::vector<std::string>> spend_build_images(Millis when) = 0;

  // --- webhooks ---
  virtual Result<void> insert_webhook(const WebhookRecord& webhook) = 0;  // exhausted: the project has kMostWebhooks
  // All of it but project, id, `created` and `told`. With `from`, what happened up to there is not told any more.
  virtual Result<void> change_webhook(const WebhookRecord& webhook, std::optional<uint64_t> from) = 0;
  virtual Result<void> set_webhook_told(const std::string& id, uint64_t told) = 0;  // never backwards
  virtual Result<WebhookRecord> find_webhook(const std::string& project, const std::string& id) = 0;
  virtual Result<std::vector<WebhookRecord>> list_webhooks(
      const std::string& project) = 0;  // oldest first; empty: of all
  virtual Result<void> remove_webhook(const std::string& project, const std::string& id) = 0;

  // --- volumes --- (the files are the launcher's)
  // As `making`: the name and the bytes are taken. exists: the name is taken; exhausted: the limit of stored bytes.
  virtual Result<void> insert_volume(const VolumeRecord& volume) = 0;
  virtual Result<void> set_volume_there(const std::string& id) = 0;
  // exhausted: the limit of stored bytes.
  virtual Result<void> set_volume_size(const std::string& id, uint64_t size) = 0;
  // One that is there.
  virtual Result<VolumeRecord> find_volume(const std::string& project, const std::string& id_or_name) = 0;
  // Whoever's it is: for those who come with the volume's own token instead of a key.
  virtual Result<VolumeRecord> find_volume_of_any(const std::string& id) = 0;
  struct VolumePage {
    std::vector<VolumeRecord> volumes;
    std::string next;
  };
  // Newest first; `cursor` as with sandboxes.
  virtual Result<VolumePage> list_volumes(const std::string& project, const std::string& cursor, size_t limit) = 0;
  virtual Result<std::vector<VolumeRecord>> all_volumes() = 0;  // in whatever state, of all projects
  // The sandboxes that have it and have not ended, those that sleep included.
  virtual Result<std::vector<std::string>> users_of_volume(const std::string& id) = 0;
  // It goes: nobody finds it from here on. unavailable (EBUSY): a sandbox has it.
  virtual Result<void> retire_volume(const std::string& id) = 0;
  virtual Result<void> forget_volume(const std::string& id) = 0;  // its bytes are gone; idempotent

  // --- secrets and bindings --- (cipher text: docs/vault.md)
  // exists: the name is taken; exhausted: kMostSecrets.
  virtual Result<void> insert_secret(const SecretRecord& secret) = 0;
  // Another value, and one version more: gives it.
  virtual Result<uint64_t> change_secret(const SecretRecord& secret) = 0;
  virtual Result<SecretRecord> find_secret(const std::string& project, const std::string& name) = 0;
  // By name, without those of single sandboxes.
  virtual Result<std::vector<SecretRecord>> list_secrets(const std::string& project) = 0;
  virtual Result<std::vector<SecretRecord>> all_secrets() = 0;  // of all projects, and of single sandboxes
  // Its bindings go with it: gives them.
  virtual Result<std::vector<BindingRecord>> remove_secret(const std::string& project, const std::string& name) = 0;
  // The same value under another key. not_found: it is not sealed like `before` any more.
  virtual Result<void> reseal_secret(const std::string& project, const std::string& name, const std::string& before,
                                     const std::string& after) = 0;
  // not_found: no such secret, or no such sandbox that lives; exhausted: kMostBindings, or the subject has 256.
  virtual Result<void> insert_binding(const BindingRecord& binding) = 0;
  virtual Result<BindingRecord> find_binding(const std::string& project, const std::string& id) = 0;
  virtual Result<void> remove_binding(const std::string& project, const std::string& id) = 0;
  // Oldest first. `scope` not given: all of the project's; else those for this subject.
  virtual Result<std::vector<BindingRecord>> list_bindings(const std::string& project,
                                                           std::optional<BindingScope> scope = {},
                                                           const std::string& subject = {}) = 0;
  // With the values that are its own.
  virtual Result<std::vector<BindingRecord>> remove_bindings_of_sandbox(const std::string& id) = 0;
  // All at once or not at all: gives what was there. not_found: no such secret, or new ones for a sandbox that has
  // ended; exhausted: as with a single one.
  virtual Result<NetworkGrants> replace_network_grants(const std::string& sandbox, const NetworkGrants& now) = 0;
  // With those that expire before `when`, of all projects; the first to expire first.
  virtual Result<std::vector<BindingRecord>> expiring_bindings(Millis when) = 0;

  // --- projects ---
  // Somebody else may have changed projects: what was kept of them in memory is read anew.
  virtual void forget_projects() = 0;
  virtual Result<void> insert_project(const ProjectRecord& project) = 0;
  // One that nobody was told of: refused (exists) once it has keys or sandboxes.
  virtual Result<void> remove_project(const std::string& id) = 0;
  virtual Result<ProjectRecord> find_project(const std::string& id) = 0;
  virtual Result<ProjectRecord> find_project_by_name(const std::string& name) = 0;
  virtual Result<std::vector<ProjectRecord>> list_projects() = 0;  // by name
  // Gives the project as it is then.
  virtual Result<ProjectRecord> change_project(const std::string& id, const ProjectChange& change) = 0;
  virtual Result<ProjectUse> project_use(const std::string& id) = 0;

  // --- tasks ---
  // An empty budget removes it. exhausted: the project has kMostTasks others.
  virtual Result<void> put_task(const TaskRecord& task) = 0;
  virtual Result<TaskRecord> find_task(const std::string& project, const std::string& task) = 0;
  virtual Result<std::vector<TaskRecord>> list_tasks() = 0;  // of all projects

  // --- keys --- (keys.h makes and checks them)
  virtual Result<void> insert_key(const KeyRecord& key) = 0;
  // Also a revoked one: look at `revoked`. Callers that let somebody in use authenticate() of keys.h.
  virtual Result<KeyRecord> find_key_by_hash(const std::string& hash) = 0;
  virtual Result<std::vector<KeyRecord>> list_keys(const std::string& project) = 0;  // oldest first; empty: of all
  virtual Result<void> revoke_key(const std::string& id, Millis when) = 0;           // again: keeps the first time
  virtual Result<void> touch_keys(const Touched& keys) = 0;
};

}  // namespace isola::store
