// Projects and keys in the SQLite store.
#include <fmt/format.h>

#include "store/sandbox_row.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Database;
using sqlite::Row;

constexpr std::string_view kProject =
    "SELECT id, name, created, limit_live, limit_cpus, limit_memory, limit_disk, limit_creates, budget_cpu, "
    "budget_wall, "
    "budget_commands, budget_bytes, budget_money, budget_freeze, ceiling, limit_stored, allow_exposed, least_boundary "
    "FROM projects "
    "WHERE ";
constexpr std::string_view kKey =
    "SELECT id, project, name, hash, prefix, scope, created, revoked, last_used FROM keys WHERE ";

constexpr std::string_view kTask =
    "SELECT project, task, budget_cpu, budget_wall, budget_commands, budget_bytes, budget_money, budget_freeze "
    "FROM tasks WHERE ";

TaskRecord read_task(const sqlite::Statement& statement) {
  Row row(statement);
  TaskRecord task{.project = row.text(), .task = row.text()};
  task.budget = read_budget(row);
  return task;
}

std::unexpected<Error> no_project(const std::string& id) { return fail(Code::not_found, "there is no project " + id); }

ProjectRecord read_project(const sqlite::Statement& statement) {
  Row row(statement);
  ProjectRecord project{.id = row.text(), .name = row.text(), .created = row.integer()};
  project.limits = {.live_sandboxes = row.integer<uint32_t>(),
                    .cpus = row.real(),
                    .memory = row.integer<uint64_t>(),
                    .disk = row.integer<uint64_t>(),
                    .creates_per_second = row.real()};
  project.budget = read_budget(row);
  project.ceiling = row.text();
  project.limits.stored = row.integer<uint64_t>();
  project.allow_exposed = row.flag();
  // A word of a later version: nothing that this one has is known to be enough.
  project.limits.boundary = parse_boundary(row.text()).value_or(BoundaryKind::microvm);
  return project;
}

void bind_limits(sqlite::Statement& statement, const ProjectLimits& limits) {
  statement.bind(limits.live_sandboxes, limits.cpus, limits.memory, limits.disk, limits.creates_per_second);
}

Result<KeyRecord> read_key(const sqlite::Statement& statement) {
  Row row(statement);
  KeyRecord key{.id = row.text(), .project = row.text(), .name = row.text(), .hash = row.text(), .prefix = row.text()};
  auto scope = parse_scope(row.text());
  if (!scope) return fail(Code::corrupt, "the store holds a scope that this version does not know, in key " + key.id);
  key.scope = *scope;
  key.created = row.integer();
  key.revoked = row.integer();
  key.last_used = row.integer();
  return key;
}

}  // namespace

Result<void> SqliteStore::insert_project(const ProjectRecord& project) {
  if (project.id.empty() || project.name.empty()) return fail(Code::invalid, "a project needs an id and a name");
  return write_projects([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT id FROM projects WHERE id = ? OR name = ?"));
    ISOLA_TRY(bool taken, query.bind(project.id, project.name).step());
    if (taken) return fail(Code::exists, fmt::format("there is a project {} already", project.name));
    query.reset();
    ISOLA_TRY(auto insert,
              db.prepare(
                  "INSERT INTO projects (id, name, created, limit_live, limit_cpus, limit_memory, limit_disk, "
                  "limit_creates, budget_cpu, budget_wall, budget_commands, budget_bytes, budget_money, budget_freeze, "
                  "ceiling, limit_stored, least_boundary) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    insert.bind(project.id, project.name, project.created);
    bind_limits(insert, project.limits);
    bind_budget(insert, project.budget);
    return insert.bind(project.ceiling, project.limits.stored, to_string(project.limits.boundary)).run();
  });
}

Result<void> SqliteStore::remove_project(const std::string& id) {
  return write_projects([&](Database& db) -> Result<void> {
    for (const char* of :
         {"SELECT 1 FROM keys WHERE project = ?", "SELECT 1 FROM sandboxes WHERE project = ? AND state <> 'ended'",
          "SELECT 1 FROM sandboxes WHERE project = ? AND state = 'ended'"}) {
      ISOLA_TRY(auto query, db.prepare(of));
      ISOLA_TRY(bool used, query.bind(id).step());
      if (used) return fail(Code::exists, "project " + id + " is in use");
    }
    ISOLA_TRY(auto webhooks, db.prepare("DELETE FROM webhooks WHERE project = ?"));
    ISOLA_CHECK(webhooks.bind(id).run());
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM projects WHERE id = ?"));
    ISOLA_CHECK(remove.bind(id).run());
    if (db.changed() == 0) return no_project(id);
    return {};
  });
}

template <typename... A>
Result<ProjectRecord> SqliteStore::one_project(std::string_view missing, std::string_view where, const A&... values) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kProject) + std::string(where)));
  ISOLA_TRY(bool found, query.bind(values...).step());
  if (!found) return no_project(std::string(missing));
  return read_project(query);
}

Result<ProjectRecord> SqliteStore::find_project(const std::string& id) {
  {
    std::lock_guard lock(projects_.mutex);
    if (auto at = projects_.known.find(id); at != projects_.known.end()) return at->second;
  }
  uint64_t before = projects_.changes;
  ISOLA_TRY(auto project, one_project(id, "id = ?", id));
  std::lock_guard lock(projects_.mutex);
  if (projects_.changes == before) projects_.known[id] = project;
  return project;
}

Result<void> SqliteStore::write_projects(const std::function<Result<void>(sqlite::Database&)>& work) {
  auto done = write(work);
  forget_projects();
  return done;
}

void SqliteStore::forget_projects() {
  std::lock_guard lock(projects_.mutex);
  ++projects_.changes;
  projects_.known.clear();
}

Result<ProjectRecord> SqliteStore::find_project_by_name(const std::string& name) {
  return one_project(name, "name = ?", name);
}

Result<std::vector<ProjectRecord>> SqliteStore::list_projects() {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kProject) + "1 ORDER BY name"));
  std::vector<ProjectRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    all.push_back(read_project(query));
  }
}

Result<ProjectRecord> SqliteStore::change_project(const std::string& id, const ProjectChange& change) {
  ProjectRecord now;
  ISOLA_CHECK(write_projects([&](Database& db) -> Result<void> {
    if (const auto& limits = change.limits) {
      ISOLA_TRY(auto update,
                db.prepare("UPDATE projects SET limit_live = ?, limit_cpus = ?, limit_memory = ?, limit_disk = ?, "
                           "limit_creates = ?, limit_stored = ?, least_boundary = ? WHERE id = ?"));
      bind_limits(update, *limits);
      ISOLA_CHECK(update.bind(limits->stored, to_string(limits->boundary), id).run());
    }
    if (const auto& budget = change.budget) {
      ISOLA_TRY(auto update, db.prepare("UPDATE projects SET budget_cpu = ?, budget_wall = ?, budget_commands = ?, "
                                        "budget_bytes = ?, budget_money = ?, budget_freeze = ? WHERE id = ?"));
      bind_budget(update, *budget);
      ISOLA_CHECK(update.bind(id).run());
    }
    if (change.ceiling) {
      ISOLA_TRY(auto update, db.prepare("UPDATE projects SET ceiling = ? WHERE id = ?"));
      ISOLA_CHECK(update.bind(*change.ceiling, id).run());
    }
    if (change.allow_exposed) {
      ISOLA_TRY(auto update, db.prepare("UPDATE projects SET allow_exposed = ? WHERE id = ?"));
      ISOLA_CHECK(update.bind(*change.allow_exposed, id).run());
    }
    ISOLA_TRY(auto query, db.prepare(std::string(kProject) + "id = ?"));
    ISOLA_TRY(bool found, query.bind(id).step());
    if (!found) return no_project(id);
    now = read_project(query);
    return {};
  }));
  return now;
}

Result<void> SqliteStore::put_task(const TaskRecord& task) {
  if (task.task.empty()) return fail(Code::invalid, "a task needs a name");
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM projects WHERE id = ?"));
    ISOLA_TRY(bool found, query.bind(task.project).step());
    if (!found) return no_project(task.project);
    query.reset();
    if (task.budget == Budget{}) {
      ISOLA_TRY(auto remove, db.prepare("DELETE FROM tasks WHERE project = ? AND task = ?"));
      return remove.bind(task.project, task.task).run();
    }
    ISOLA_TRY(auto others, db.prepare("SELECT count(*) FROM tasks WHERE project = ? AND task <> ?"));
    ISOLA_TRY(bool counted, others.bind(task.project, task.task).step());
    if (counted && others.integer(0) >= static_cast<int64_t>(kMostTasks))
      return fail(Code::exhausted,
                  fmt::format("this project has {} tasks with a budget already; take some away first", kMostTasks));
    others.reset();
    ISOLA_TRY(auto insert, db.prepare("INSERT OR REPLACE INTO tasks (project, task, budget_cpu, budget_wall, "
                                      "budget_commands, budget_bytes, budget_money, budget_freeze) "
                                      "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"));
    insert.bind(task.project, task.task);
    bind_budget(insert, task.budget);
    return insert.run();
  });
}

Result<TaskRecord> SqliteStore::find_task(const std::string& project, const std::string& task) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kTask) + "project = ? AND task = ?"));
  ISOLA_TRY(bool found, query.bind(project, task).step());
  if (!found) return fail(Code::not_found, "the task \"" + task + "\" has no budget");
  return read_task(query);
}

Result<std::vector<TaskRecord>> SqliteStore::list_tasks() {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kTask) + "1 ORDER BY project, task"));
  std::vector<TaskRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    all.push_back(read_task(query));
  }
}

Result<ProjectUse> SqliteStore::project_use(const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare("SELECT used_live, used_millicpus, used_memory, used_disk, used_stored FROM projects "
                               "WHERE id = ?"));
  ISOLA_TRY(bool found, query.bind(id).step());
  if (!found) return no_project(id);
  return ProjectUse{.live_sandboxes = static_cast<uint32_t>(query.integer(0)),
                    .cpus = query.real(1) / 1000,
                    .memory = static_cast<uint64_t>(query.integer(2)),
                    .disk = static_cast<uint64_t>(query.integer(3)),
                    .stored = static_cast<uint64_t>(query.integer(4))};
}

Result<void> SqliteStore::insert_key(const KeyRecord& key) {
  if (key.id.empty() || key.hash.empty()) return fail(Code::invalid, "a key needs an id and a hash");
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM projects WHERE id = ?"));
    ISOLA_TRY(bool found, query.bind(key.project).step());
    if (!found) return no_project(key.project);
    query.reset();
    ISOLA_TRY(auto insert,
              db.prepare("INSERT INTO keys (id, project, name, hash, prefix, scope, created, revoked, last_used) "
                         "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    return insert
        .bind(key.id, key.project, key.name, key.hash, key.prefix, to_string(key.scope), key.created, key.revoked,
              key.last_used)
        .run();
  });
}

Result<KeyRecord> SqliteStore::find_key_by_hash(const std::string& hash) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kKey) + "hash = ?"));
  ISOLA_TRY(bool found, query.bind(hash).step());
  if (!found) return fail(Code::not_found, "there is no such key");
  return read_key(query);
}

Result<std::vector<KeyRecord>> SqliteStore::list_keys(const std::string& project) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kKey) + (project.empty() ? "? = ''" : "project = ?") +
                                           " ORDER BY created, id"));
  query.bind(project);
  std::vector<KeyRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto key, read_key(query));
    all.push_back(std::move(key));
  }
}

Result<void> SqliteStore::revoke_key(const std::string& id, Millis when) {
  if (when <= 0) return fail(Code::invalid, "a revocation needs a time: 0 would mean that there was none");
  return write([&](Database& db) -> Result<void> {
    // Without one of these nobody can make another.
    ISOLA_TRY(auto last, db.prepare("SELECT 1 FROM keys WHERE id = ? AND project = 'default' AND scope = 'admin' AND "
                                    "revoked = 0 AND NOT EXISTS (SELECT 1 FROM keys WHERE id <> ? AND project = "
                                    "'default' AND scope = 'admin' AND revoked = 0)"));
    ISOLA_TRY(bool only, last.bind(id, id).step());
    if (only)
      return fail(Code::exists,
                  "it is the last admin key of the project \"default\": make another one first, else nobody could");
    ISOLA_TRY(auto update,
              db.prepare("UPDATE keys SET revoked = CASE revoked WHEN 0 THEN ? ELSE revoked END WHERE id = ?"));
    ISOLA_CHECK(update.bind(when, id).run());
    if (db.changed() == 0) return fail(Code::not_found, "there is no key " + id);
    return {};
  });
}

Result<void> SqliteStore::touch_keys(const Touched& keys) {
  if (keys.empty()) return {};
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE keys SET last_used = ? WHERE id = ? AND last_used < ?"));
    for (const auto& [id, when] : keys) {
      ISOLA_CHECK(update.bind(when, id, when).run());
      update.reset();
    }
    return {};
  });
}

}  // namespace isola::store
