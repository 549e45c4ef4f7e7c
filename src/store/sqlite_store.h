// The store in one SQLite file: the embedded default.
//
//   ISOLA_TRY(auto store, store::SqliteStore::open(data + "/store.db"));
//
// One connection writes, under a mutex; another reads, under its own: a long list does not hold up a create. A third
// answers what may take long (SandboxFilter::until), and holds up neither.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "store/checkpointer.h"
#include "store/sqlite.h"
#include "store/store.h"

namespace isola::store {

class SqliteStore final : public Store {
 public:
  static Result<std::unique_ptr<SqliteStore>> open(const std::string& path, sqlite::Sync sync = sqlite::Sync::normal);

  Result<void> insert_sandbox(const SandboxRecord& sandbox) override;
  Result<void> set_state(const std::string& id, State to, const Why& why = {}) override;
  Result<void> set_end(const std::string& id, EndReason reason, const std::string& detail, Millis when) override;
  Result<void> change_sandbox(const std::string& id, const SandboxChange& change) override;
  Result<void> set_lifetime(const std::string& id, const Lifetime& lifetime) override;
  Result<void> set_metadata(const std::string& id, const Labels& metadata) override;
  Result<void> set_network(const std::string& id, const std::string& network) override;
  Result<void> set_budget(const std::string& id, const Budget& budget) override;
  Result<void> touch(const Touched& sandboxes) override;
  Result<SandboxRecord> find_sandbox(const std::string& id) override;
  Result<SandboxRecord> find_ended(const std::string& project, const std::string& name) override;
  Result<Labels> names_of(const std::vector<std::string>& ids) override;
  Result<SandboxPage> list_sandboxes(const SandboxFilter& filter, const std::string& cursor, size_t limit) override;
  Result<std::vector<SandboxRecord>> living() override;
  Result<size_t> forget_ended_before(Millis when, size_t most) override;

  Result<void> insert_snapshot(const ImageRecord& image, const std::string& instead_of = {}) override;
  Result<void> set_asleep(const std::string& id, State to, const ImageRecord& image, Millis when,
                          const std::string& why = {}) override;
  Result<void> set_rolled_back(const std::string& id, const std::string& snapshot, Millis when) override;
  Result<void> set_awake(const std::string& id, Birth birth, const Lifetime& lifetime, uint64_t cpu_before,
                         Millis when) override;
  Result<ImageRecord> find_image(const std::string& id) override;
  Result<ImageRecord> find_snapshot(const std::string& project, const std::string& id_or_name) override;
  Result<SnapshotPage> list_snapshots(const std::string& project, const std::string& sandbox, const std::string& cursor,
                                      size_t limit) override;
  Result<std::vector<ImageRecord>> all_images() override;
  Result<std::vector<ImageRecord>> expired_images(Millis now) override;
  Result<void> touch_image(const std::string& id, Millis when) override;
  Result<void> spend_snapshot(const std::string& id) override;
  Result<void> insert_warm(const ImageRecord& image) override;
  Result<void> spend_warm(const std::string& id) override;
  Result<void> forget_image(const std::string& id) override;

  Result<void> insert_template(const TemplateRecord& record) override;
  Result<TemplateRecord> find_published(const std::string& id_or_path) override;
  Result<void> set_published(const std::string& id, bool published) override;
  Result<TemplateRecord> find_template(const std::string& project, const std::string& id_or_name) override;
  Result<std::vector<TemplateRecord>> list_templates(const std::string& project) override;
  Result<void> remove_template(const std::string& id) override;
  Result<void> put_build(const BuildRecord& build, const std::vector<std::string>& tags = {}) override;
  Result<BuildRecord> find_build(const std::string& template_id, const std::string& id) override;
  Result<std::vector<BuildRecord>> list_builds(const std::string& template_id) override;
  Result<void> forget_old_builds(const std::string& template_id, size_t keep) override;
  Result<BuildRecord> tagged_build(const std::string& template_id, const std::string& tag) override;
  Result<void> put_tags(const std::string& template_id, const std::vector<std::string>& tags,
                        const std::string& build) override;
  Result<void> remove_tags(const std::string& template_id, const std::vector<std::string>& tags) override;
  Result<std::map<std::string, std::string>> tags_of(const std::string& template_id) override;
  Result<void> add_build_lines(const std::string& build, const std::vector<BuildLine>& lines) override;
  Result<std::vector<BuildLine>> build_lines(const std::string& build, uint64_t from, size_t most) override;
  Result<void> fail_unfinished_builds(const std::string& why, Millis when) override;
  Result<void> insert_build_image(const ImageRecord& image) override;
  Result<void> set_packed(const std::string& id, State to, uint64_t memory_bytes, uint64_t layer_bytes) override;
  Result<void> spend_step(const std::string& id) override;
  Result<ImageRecord> find_step(const std::string& project, const std::string& key) override;
  Result<std::vector<std::string>> spend_build_images(Millis when) override;

  Result<void> insert_webhook(const WebhookRecord& webhook) override;
  Result<void> change_webhook(const WebhookRecord& webhook, std::optional<uint64_t> from) override;
  Result<void> set_webhook_told(const std::string& id, uint64_t told) override;
  Result<WebhookRecord> find_webhook(const std::string& project, const std::string& id) override;
  Result<std::vector<WebhookRecord>> list_webhooks(const std::string& project) override;
  Result<void> remove_webhook(const std::string& project, const std::string& id) override;

  Result<void> insert_volume(const VolumeRecord& volume) override;
  Result<void> set_volume_there(const std::string& id) override;
  Result<void> set_volume_size(const std::string& id, uint64_t size) override;
  Result<VolumeRecord> find_volume(const std::string& project, const std::string& id_or_name) override;
  Result<VolumeRecord> find_volume_of_any(const std::string& id) override;
  Result<VolumePage> list_volumes(const std::string& project, const std::string& cursor, size_t limit) override;
  Result<std::vector<VolumeRecord>> all_volumes() override;
  Result<std::vector<std::string>> users_of_volume(const std::string& id) override;
  Result<void> retire_volume(const std::string& id) override;
  Result<void> forget_volume(const std::string& id) override;

  Result<void> insert_secret(const SecretRecord& secret) override;
  Result<uint64_t> change_secret(const SecretRecord& secret) override;
  Result<SecretRecord> find_secret(const std::string& project, const std::string& name) override;
  Result<std::vector<SecretRecord>> list_secrets(const std::string& project) override;
  Result<std::vector<SecretRecord>> all_secrets() override;
  Result<std::vector<BindingRecord>> remove_secret(const std::string& project, const std::string& name) override;
  Result<void> reseal_secret(const std::string& project, const std::string& name, const std::string& before,
                             const std::string& after) override;
  Result<void> insert_binding(const BindingRecord& binding) override;
  Result<BindingRecord> find_binding(const std::string& project, const std::string& id) override;
  Result<void> remove_binding(const std::string& project, const std::string& id) override;
  Result<std::vector<BindingRecord>> list_bindings(const std::string& project, std::optional<BindingScope> scope = {},
                                                   const std::string& subject = {}) override;
  Result<std::vector<BindingRecord>> remove_bindings_of_sandbox(const std::string& id) override;
  Result<NetworkGrants> replace_network_grants(const std::string& sandbox, const NetworkGrants& now) override;
  Result<std::vector<BindingRecord>> expiring_bindings(Millis when) override;

  void forget_projects() override;
  Result<void> insert_project(const ProjectRecord& project) override;
  Result<void> remove_project(const std::string& id) override;
  Result<ProjectRecord> find_project(const std::string& id) override;
  Result<ProjectRecord> find_project_by_name(const std::string& name) override;
  Result<std::vector<ProjectRecord>> list_projects() override;
  Result<ProjectRecord> change_project(const std::string& id, const ProjectChange& change) override;
  Result<ProjectUse> project_use(const std::string& id) override;

  Result<void> put_task(const TaskRecord& task) override;
  Result<TaskRecord> find_task(const std::string& project, const std::string& task) override;
  Result<std::vector<TaskRecord>> list_tasks() override;

  Result<void> insert_key(const KeyRecord& key) override;
  Result<KeyRecord> find_key_by_hash(const std::string& hash) override;
  Result<std::vector<KeyRecord>> list_keys(const std::string& project) override;
  Result<void> revoke_key(const std::string& id, Millis when) override;
  Result<void> touch_keys(const Touched& keys) override;

 private:
  struct Connection {
    std::mutex mutex;
    sqlite::Database db;
    explicit Connection(sqlite::Database opened) : db(std::move(opened)) {}
  };
  SqliteStore(sqlite::Database writer, sqlite::Database reader, sqlite::Database patient)
      : writer_(std::move(writer)), reader_(std::move(reader)), patient_(std::move(patient)) {}

  // Runs `work(db)` in a transaction of the writer, which is committed when it succeeds.
  template <typename Work>
  Result<void> write(Work work) {
    std::lock_guard lock(writer_.mutex);
    ISOLA_TRY(auto change, sqlite::Transaction::begin(writer_.db));
    ISOLA_CHECK(work(writer_.db));
    return change.commit();
  }
  // Changes one sandbox that has not ended: `assignments` of an UPDATE, with values for their `?`s.
  template <typename... A>
  static Result<void> update_sandbox(sqlite::Database& db, const std::string& id, std::string_view assignments,
                                     const A&... values);
  static Result<void> write_change(sqlite::Database& db, const std::string& id, const SandboxChange& change);
  template <typename... A>
  Result<ProjectRecord> one_project(std::string_view missing, std::string_view where, const A&... values);

  Result<void> write_projects(const std::function<Result<void>(sqlite::Database&)>& work);
  Result<void> write_templates(const std::function<Result<void>(sqlite::Database&)>& work);

  Connection writer_;
  Connection reader_;
  Connection patient_;  // of questions that have a deadline, and may need it
  // Every create asks for its project, and nearly nobody changes one. This process is the only one that writes.
  struct {
    std::mutex mutex;
    std::atomic<uint64_t> changes = 0;
    std::unordered_map<std::string, ProjectRecord> known;
  } projects_;
  // The same of templates, by project and name or id; most creates name one that no project has.
  struct {
    std::mutex mutex;
    std::atomic<uint64_t> changes = 0;
    std::map<std::pair<std::string, std::string>, std::optional<TemplateRecord>> known;
  } templates_;
  // Projects that have, or had, a binding. Every create with a network asks, and most projects have none.
  struct {
    std::mutex mutex;
    std::unordered_set<std::string> projects;
  } bound_;
  Result<void> find_bound();
  void will_bind(const std::string& project);
  std::unique_ptr<Checkpointer> checkpointer_;  // after writer_: goes first
};

}  // namespace isola::store
