// Secrets and bindings in the SQLite store: cipher text, and who may use it for what.
#include <fmt/format.h>

#include "store/json_columns.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Blob;
using sqlite::Database;
using sqlite::Row;

constexpr std::string_view kSecret =
    "SELECT project, name, version, sealed, source, created, changed, actor, made_by, metadata, sandbox FROM secrets "
    "WHERE ";
constexpr std::string_view kBinding =
    "SELECT id, project, scope, subject, secret, body, expires, created, actor, made_by, of_network FROM bindings "
    "WHERE ";
constexpr int64_t kMostOfSubject = 256;

std::unexpected<Error> no_secret(const std::string& name) {
  return fail(Code::not_found, "there is no secret " + name);
}
std::unexpected<Error> no_binding(const std::string& id) { return fail(Code::not_found, "there is no binding " + id); }

Result<SecretRecord> read_secret(const sqlite::Statement& statement) {
  Row row(statement);
  SecretRecord secret{.project = row.text(), .name = row.text(), .version = row.integer<uint64_t>()};
  secret.sealed = row.text();
  secret.source = row.text();
  secret.created = row.integer();
  secret.changed = row.integer();
  secret.actor = row.text();
  secret.made_by = row.text();
  ISOLA_TRY(secret.metadata, labels_of(row.text()));
  secret.sandbox = row.text();
  return secret;
}

Result<BindingRecord> read_binding(const sqlite::Statement& statement) {
  Row row(statement);
  BindingRecord binding{.id = row.text(), .project = row.text()};
  auto scope = parse_binding_scope(row.text());
  if (!scope) return fail(Code::corrupt, "the store holds a word that this version does not know, in " + binding.id);
  binding.scope = *scope;
  binding.subject = row.text();
  binding.secret = row.text();
  binding.body = row.text();
  binding.expires = row.integer();
  binding.created = row.integer();
  binding.actor = row.text();
  binding.made_by = row.text();
  binding.of_network = row.flag();
  return binding;
}

Result<std::vector<SecretRecord>> read_secrets(sqlite::Statement& query) {
  std::vector<SecretRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto secret, read_secret(query));
    all.push_back(std::move(secret));
  }
}

Result<std::vector<BindingRecord>> read_bindings(sqlite::Statement& query) {
  std::vector<BindingRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto binding, read_binding(query));
    all.push_back(std::move(binding));
  }
}

std::string sql(std::string_view select, std::string_view where) { return std::string(select) + std::string(where); }

Result<void> add_secret(Database& db, const SecretRecord& secret) {
  ISOLA_TRY(auto known, db.prepare("SELECT 1 FROM projects WHERE id = ?"));
  ISOLA_TRY(bool there, known.bind(secret.project).step());
  if (!there) return fail(Code::not_found, "there is no project " + secret.project);
  ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM secrets WHERE project = ? AND name = ?"));
  ISOLA_TRY(bool taken, query.bind(secret.project, secret.name).step());
  if (taken) return fail(Code::exists, fmt::format("there is a secret \"{}\" already", secret.name));
  ISOLA_TRY(auto count, db.prepare("SELECT count(*) FROM secrets WHERE project = ?"));
  ISOLA_CHECK(count.bind(secret.project).step());
  if (count.integer(0) >= static_cast<int64_t>(kMostSecrets))
    return fail(Code::exhausted, fmt::format("a project has at most {} secrets", kMostSecrets));
  count.reset();
  ISOLA_TRY(std::string metadata, to_json(secret.metadata, "metadata"));
  ISOLA_TRY(auto insert,
            db.prepare("INSERT INTO secrets (project, name, version, sealed, source, created, changed, actor, "
                       "made_by, metadata, sandbox) VALUES (?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?)"));
  return insert
      .bind(secret.project, secret.name, Blob{secret.sealed}, secret.source, secret.created, secret.created,
            secret.actor, secret.made_by, metadata, secret.sandbox)
      .run();
}

Result<void> add_binding(Database& db, const BindingRecord& binding) {
  ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM secrets WHERE project = ? AND name = ?"));
  ISOLA_TRY(bool found, query.bind(binding.project, binding.secret).step());
  if (!found) return no_secret(binding.secret);
  ISOLA_TRY(auto count, db.prepare("SELECT count(*), coalesce(sum(scope = ? AND subject = ?), 0) FROM bindings "
                                   "WHERE project = ?"));
  ISOLA_CHECK(count.bind(to_string(binding.scope), binding.subject, binding.project).step());
  if (count.integer(0) >= static_cast<int64_t>(kMostBindings) || count.integer(1) >= kMostOfSubject)
    return fail(Code::exhausted, "there are too many bindings");
  count.reset();
  ISOLA_TRY(auto insert,
            db.prepare("INSERT INTO bindings (id, project, scope, subject, secret, body, expires, created, actor, "
                       "made_by, of_network) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
  return insert
      .bind(binding.id, binding.project, to_string(binding.scope), binding.subject, binding.secret, binding.body,
            binding.expires, binding.created, binding.actor, binding.made_by, binding.of_network)
      .run();
}

Result<void> remove_own_secrets(Database& db, const std::string& sandbox) {
  ISOLA_TRY(auto remove, db.prepare("DELETE FROM secrets WHERE sandbox <> '' AND sandbox = ?"));
  return remove.bind(sandbox).run();
}

}  // namespace

Result<void> SqliteStore::insert_secret(const SecretRecord& secret) {
  if (secret.name.empty() || secret.sealed.empty()) return fail(Code::invalid, "a secret needs a name and a value");
  return write([&](Database& db) { return add_secret(db, secret); });
}

Result<uint64_t> SqliteStore::change_secret(const SecretRecord& secret) {
  if (secret.sealed.empty()) return fail(Code::invalid, "a secret needs a value");
  ISOLA_TRY(std::string metadata, to_json(secret.metadata, "metadata"));
  uint64_t version = 0;
  auto changed = write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE secrets SET version = version + 1, sealed = ?, source = ?, changed = ?, "
                                      "actor = ?, made_by = ?, metadata = ? WHERE project = ? AND name = ?"));
    ISOLA_CHECK(update
                    .bind(Blob{secret.sealed}, secret.source, secret.changed, secret.actor, secret.made_by, metadata,
                          secret.project, secret.name)
                    .run());
    if (db.changed() == 0) return no_secret(secret.name);
    ISOLA_TRY(auto query, db.prepare("SELECT version FROM secrets WHERE project = ? AND name = ?"));
    ISOLA_CHECK(query.bind(secret.project, secret.name).step());
    version = static_cast<uint64_t>(query.integer(0));
    return {};
  });
  if (!changed) return std::unexpected(changed.error());
  return version;
}

Result<SecretRecord> SqliteStore::find_secret(const std::string& project, const std::string& name) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(sql(kSecret, "project = ? AND name = ?")));
  ISOLA_TRY(bool found, query.bind(project, name).step());
  if (!found) return no_secret(name);
  return read_secret(query);
}

Result<std::vector<SecretRecord>> SqliteStore::list_secrets(const std::string& project) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(sql(kSecret, "project = ? AND sandbox = '' ORDER BY name")));
  query.bind(project);
  return read_secrets(query);
}

Result<std::vector<SecretRecord>> SqliteStore::all_secrets() {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(sql(kSecret, "1 ORDER BY project, name")));
  return read_secrets(query);
}

Result<std::vector<BindingRecord>> SqliteStore::remove_secret(const std::string& project, const std::string& name) {
  std::vector<BindingRecord> gone;
  auto removed = write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare(sql(kBinding, "project = ? AND secret = ? ORDER BY created, id")));
    query.bind(project, name);
    ISOLA_TRY(gone, read_bindings(query));
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM secrets WHERE project = ? AND name = ?"));
    ISOLA_CHECK(remove.bind(project, name).run());
    if (db.changed() == 0) return no_secret(name);
    return {};
  });
  if (!removed) return std::unexpected(removed.error());
  return gone;
}

Result<void> SqliteStore::reseal_secret(const std::string& project, const std::string& name, const std::string& before,
                                        const std::string& after) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE secrets SET sealed = ? WHERE project = ? AND name = ? AND sealed = ?"));
    ISOLA_CHECK(update.bind(Blob{after}, project, name, Blob{before}).run());
    if (db.changed() == 0) return no_secret(name);
    return {};
  });
}

Result<void> SqliteStore::insert_binding(const BindingRecord& binding) {
  if (binding.id.empty() || binding.body.empty()) return fail(Code::invalid, "a binding needs an id and what it says");
  will_bind(binding.project);
  return write([&](Database& db) -> Result<void> {
    // What ended while somebody made ready to bind would never be rid of it.
    if (binding.scope == BindingScope::sandbox) {
      ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM sandboxes WHERE id = ? AND project = ? AND state <> 'ended'"));
      ISOLA_TRY(bool lives, query.bind(binding.subject, binding.project).step());
      if (!lives) return fail(Code::not_found, "there is no sandbox " + binding.subject + ", or it has ended");
    }
    return add_binding(db, binding);
  });
}

Result<BindingRecord> SqliteStore::find_binding(const std::string& project, const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(sql(kBinding, "project = ? AND id = ?")));
  ISOLA_TRY(bool found, query.bind(project, id).step());
  if (!found) return no_binding(id);
  return read_binding(query);
}

Result<void> SqliteStore::remove_binding(const std::string& project, const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM bindings WHERE project = ? AND id = ?"));
    ISOLA_CHECK(remove.bind(project, id).run());
    if (db.changed() == 0) return no_binding(id);
    return {};
  });
}

Result<std::vector<BindingRecord>> SqliteStore::list_bindings(const std::string& project,
                                                              std::optional<BindingScope> scope,
                                                              const std::string& subject) {
  {
    std::lock_guard lock(bound_.mutex);
    if (!bound_.projects.contains(project)) return std::vector<BindingRecord>();
  }
  std::lock_guard lock(reader_.mutex);
  if (!scope) {
    ISOLA_TRY(auto query, reader_.db.prepare(sql(kBinding, "project = ? ORDER BY created, id")));
    query.bind(project);
    return read_bindings(query);
  }
  ISOLA_TRY(auto query,
            reader_.db.prepare(sql(kBinding, "project = ? AND scope = ? AND subject = ? ORDER BY created, id")));
  query.bind(project, to_string(*scope), subject);
  return read_bindings(query);
}

Result<void> SqliteStore::find_bound() {
  ISOLA_TRY(auto query, reader_.db.prepare("SELECT DISTINCT project FROM bindings"));
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return {};
    bound_.projects.insert(query.text(0));
  }
}

// Before it is written: whoever asks from then on finds what there is.
void SqliteStore::will_bind(const std::string& project) {
  std::lock_guard lock(bound_.mutex);
  bound_.projects.insert(project);
}

Result<std::vector<BindingRecord>> SqliteStore::remove_bindings_of_sandbox(const std::string& id) {
  std::vector<BindingRecord> gone;
  auto removed = write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare(sql(kBinding, "scope = 'sandbox' AND subject = ? ORDER BY created, id")));
    query.bind(id);
    ISOLA_TRY(gone, read_bindings(query));
    if (gone.empty()) return {};
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM bindings WHERE scope = 'sandbox' AND subject = ?"));
    ISOLA_CHECK(remove.bind(id).run());
    return remove_own_secrets(db, id);
  });
  if (!removed) return std::unexpected(removed.error());
  return gone;
}

Result<NetworkGrants> SqliteStore::replace_network_grants(const std::string& sandbox, const NetworkGrants& now) {
  NetworkGrants before;
  for (const auto& binding : now.bindings) will_bind(binding.project);
  auto replaced = write([&](Database& db) -> Result<void> {
    if (!now.bindings.empty()) {
      ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM sandboxes WHERE id = ? AND state = 'ended'"));
      ISOLA_TRY(bool over, query.bind(sandbox).step());
      if (over) return fail(Code::not_found, "the sandbox " + sandbox + " has ended");
    }
    constexpr std::string_view kTheirs = "scope = 'sandbox' AND subject = ? AND of_network";
    ISOLA_TRY(auto bindings, db.prepare(sql(kBinding, std::string(kTheirs) + " ORDER BY created, id")));
    bindings.bind(sandbox);
    ISOLA_TRY(before.bindings, read_bindings(bindings));
    ISOLA_TRY(auto secrets, db.prepare(sql(kSecret, "sandbox <> '' AND sandbox = ? ORDER BY name")));
    secrets.bind(sandbox);
    ISOLA_TRY(before.secrets, read_secrets(secrets));
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM bindings WHERE " + std::string(kTheirs)));
    ISOLA_CHECK(remove.bind(sandbox).run());
    ISOLA_CHECK(remove_own_secrets(db, sandbox));
    for (const auto& secret : now.secrets) ISOLA_CHECK(add_secret(db, secret));
    for (const auto& binding : now.bindings) ISOLA_CHECK(add_binding(db, binding));
    return {};
  });
  if (!replaced) return std::unexpected(replaced.error());
  return before;
}

Result<std::vector<BindingRecord>> SqliteStore::expiring_bindings(Millis when) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(sql(kBinding, "expires > 0 AND expires < ? ORDER BY expires, id")));
  query.bind(when);
  return read_bindings(query);
}

}  // namespace isola::store
