#include <fmt/format.h>

#include <cmath>

#include "store/json_columns.h"
#include "store/sandbox_list.h"
#include "store/sandbox_row.h"
#include "store/sqlite_page.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Database;
using sqlite::Row;

constexpr size_t kMostOfPage = 4 << 20;  // bytes

std::unexpected<Error> no_sandbox(const std::string& id) { return fail(Code::not_found, "there is no sandbox " + id); }

// A name or key (column `what`) must be free among the project's sandboxes that have not ended.
Result<void> check_free(Database& db, std::string_view what, const std::string& project, const std::string& value) {
  if (value.empty()) return {};
  ISOLA_TRY(auto query,
            db.prepare(fmt::format(
                "SELECT id FROM sandboxes WHERE project = ? AND {0} = ? AND {0} <> '' AND state <> 'ended'", what)));
  ISOLA_TRY(bool taken, query.bind(project, value).step());
  if (taken) return fail(Code::exists, fmt::format("the {} \"{}\" is taken by sandbox {}", what, value, query.text(0)));
  return {};
}

// Whether `more` would take the project over a limit.
Result<void> check_room(Database& db, const std::string& project, const ProjectUse& more) {
  ISOLA_TRY(auto query,
            db.prepare("SELECT limit_live, limit_cpus, limit_memory, limit_disk, used_live, used_millicpus, "
                       "used_memory, used_disk FROM projects WHERE id = ?"));
  ISOLA_TRY(bool found, query.bind(project).step());
  if (!found) return fail(Code::not_found, "there is no project " + project);
  Row row(query);
  auto most_live = row.integer<uint64_t>();
  double most_cpus = row.real();
  auto most_memory = row.integer<uint64_t>(), most_disk = row.integer<uint64_t>();
  auto live = row.integer<uint64_t>();
  auto millicpus = row.integer();
  auto memory = row.integer<uint64_t>(), disk = row.integer<uint64_t>();
  auto over = [&](std::string_view what, auto limit, auto used, auto asked) {
    return fail(Code::exhausted, fmt::format("project {} would exceed its limit of {} {} ({} in use, {} asked for)",
                                             project, limit, what, used, asked));
  };
  if (most_live && live + more.live_sandboxes > most_live)
    return over("live sandboxes", most_live, live, more.live_sandboxes);
  if (most_cpus > 0 && more.cpus > 0 && millicpus + std::llround(more.cpus * 1000) > std::llround(most_cpus * 1000))
    return over("CPUs", most_cpus, static_cast<double>(millicpus) / 1000, more.cpus);
  if (most_memory && more.memory && memory + more.memory > most_memory)
    return over("bytes of memory", most_memory, memory, more.memory);
  if (most_disk && more.disk && disk + more.disk > most_disk) return over("bytes of disk", most_disk, disk, more.disk);
  return {};
}

// Why an UPDATE of a sandbox that has not ended found no row.
std::unexpected<Error> why_unchanged(Database& db, const std::string& id) {
  auto query = db.prepare("SELECT end_reason FROM sandboxes WHERE id = ?");
  if (!query) return std::unexpected(query.error());
  auto found = query->bind(id).step();
  if (!found) return std::unexpected(found.error());
  if (!*found) return no_sandbox(id);
  return fail(Code::invalid, fmt::format("sandbox {} has ended ({})", id, query->text(0)));
}

// The volumes are the project's, and not about to go. (Nobody but the service finds one that is still being made.)
Result<void> check_volumes(Database& db, const SandboxRecord& sandbox) {
  for (const auto& use : sandbox.volumes) {
    if (use.bucket) continue;
    ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM volumes WHERE id = ? AND project = ? AND state <> 'gone'"));
    ISOLA_TRY(bool found, query.bind(use.volume, sandbox.project).step());
    if (!found) return fail(Code::not_found, "there is no volume " + use.volume);
  }
  return {};
}

Result<std::vector<SandboxRecord>> read_all(sqlite::Statement& query) {
  std::vector<SandboxRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto record, read_sandbox(query));
    all.push_back(std::move(record));
  }
}

}  // namespace

Result<void> SqliteStore::insert_sandbox(const SandboxRecord& sandbox) {
  const auto& limits = sandbox.limits;
  if (sandbox.id.empty()) return fail(Code::invalid, "a sandbox needs an id");
  if (!std::isfinite(limits.cpus) || limits.cpus < 0 || limits.cpus > 1e6 || limits.memory > kLargestLimit ||
      limits.disk > kLargestLimit)
    return fail(Code::invalid, "the limits of sandbox " + sandbox.id + " are beyond any machine");
  return write([&](Database& db) -> Result<void> {
    ProjectUse asked{.disk = sandbox.state == State::ended ? 0 : limits.disk};
    if (is_live(sandbox.state))
      asked = {.live_sandboxes = 1, .cpus = limits.cpus, .memory = limits.memory, .disk = limits.disk};
    ISOLA_CHECK(check_room(db, sandbox.project, asked));
    if (sandbox.state != State::ended) {
      ISOLA_CHECK(check_free(db, "name", sandbox.project, sandbox.name));
      ISOLA_CHECK(check_free(db, "key", sandbox.project, sandbox.key));
      ISOLA_CHECK(check_volumes(db, sandbox));
    }
    static const std::string kInsert =
        fmt::format("INSERT INTO sandboxes ({}) VALUES ({})", kSandboxColumns, kSandboxMarks);
    ISOLA_TRY(auto insert, db.prepare(kInsert));
    ISOLA_CHECK(bind_sandbox(insert, sandbox));
    return insert.run();
  });
}

template <typename... A>
Result<void> SqliteStore::update_sandbox(Database& db, const std::string& id, std::string_view assignments,
                                         const A&... values) {
  ISOLA_TRY(auto update,
            db.prepare(fmt::format("UPDATE sandboxes SET {} WHERE id = ? AND state <> 'ended'", assignments)));
  ISOLA_CHECK(update.bind(values..., id).run());
  if (db.changed() == 0) return why_unchanged(db, id);
  return {};
}

Result<void> SqliteStore::set_state(const std::string& id, State to, const Why& why) {
  if (to == State::ended) return fail(Code::invalid, "a sandbox ends by set_end, with a reason");
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT project, state, cpus, memory FROM sandboxes WHERE id = ?"));
    ISOLA_TRY(bool found, query.bind(id).step());
    if (!found) return no_sandbox(id);
    auto state = parse_state(query.text(1));
    if (!state || *state == State::ended) return why_unchanged(db, id);
    if (*state == State::ending && to != State::ending)
      return fail(Code::invalid, fmt::format("sandbox {} is ending: it cannot be {} any more", id, to_string(to)));
    // One that only ends takes nobody's place.
    if (is_live(to) && to != State::ending && !is_live(*state)) {
      ProjectUse asked{.live_sandboxes = 1, .cpus = query.real(2), .memory = static_cast<uint64_t>(query.integer(3))};
      ISOLA_CHECK(check_room(db, query.text(0), asked));
    }
    query.reset();
    bool told = to == State::ending || to == State::frozen;
    ISOLA_TRY(auto update, db.prepare("UPDATE sandboxes SET state = ?, end_reason = ?, end_detail = ? WHERE id = ?"));
    return update.bind(to_string(to), to_string(why.reason), told ? why.detail : std::string(), id).run();
  });
}

Result<void> SqliteStore::set_end(const std::string& id, EndReason reason, const std::string& detail, Millis when) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE sandboxes SET state = 'ended', end_reason = ?, end_detail = ?, ended = ? "
                                      "WHERE id = ? AND state <> 'ended'"));
    ISOLA_CHECK(update.bind(to_string(reason), detail, when, id).run());
    if (db.changed() != 0) {
      // Nobody resumes it any more.
      ISOLA_TRY(auto spend, db.prepare("UPDATE images SET kind = 'spent' WHERE kind = 'pause' AND id = "
                                       "(SELECT image FROM sandboxes WHERE id = ? AND image <> '')"));
      return spend.bind(id).run();
    }
    ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM sandboxes WHERE id = ?"));
    ISOLA_TRY(bool found, query.bind(id).step());
    if (!found) return no_sandbox(id);
    return {};
  });
}

Result<void> SqliteStore::write_change(Database& db, const std::string& id, const SandboxChange& change) {
  if (const auto& lifetime = change.lifetime)
    ISOLA_CHECK(
        update_sandbox(db, id,
                       "deadline = ?, idle_limit = ?, at_end = ?, auto_resume = ?, timeout = ?, delete_after = ?, "
                       "freeze_after = ?, archive_after = ?",
                       lifetime->deadline, lifetime->idle_limit, to_string(lifetime->at_end), lifetime->auto_resume,
                       lifetime->timeout, lifetime->delete_after, lifetime->freeze_after, lifetime->archive_after));
  if (change.metadata) {
    ISOLA_TRY(std::string json, to_json(*change.metadata, "metadata"));
    ISOLA_CHECK(update_sandbox(db, id, "metadata = ?", json));
  }
  if (change.env) {
    ISOLA_TRY(std::string json, to_json(*change.env, "environment variables"));
    ISOLA_CHECK(update_sandbox(db, id, "env = ?", json));
  }
  if (change.network) ISOLA_CHECK(update_sandbox(db, id, "network = ?", *change.network));
  if (change.granted) ISOLA_CHECK(update_sandbox(db, id, "granted = ?", *change.granted));
  if (change.keep_grants) ISOLA_CHECK(update_sandbox(db, id, "keep_grants = ?", *change.keep_grants));
  if (change.exposed) ISOLA_CHECK(update_sandbox(db, id, "exposed = ?", *change.exposed));
  if (change.screened) ISOLA_CHECK(update_sandbox(db, id, "screened = ?", *change.screened));
  if (const auto& budget = change.budget)
    ISOLA_CHECK(update_sandbox(db, id,
                               "budget_cpu = ?, budget_wall = ?, budget_commands = ?, budget_bytes = ?, "
                               "budget_money = ?, budget_freeze = ?",
                               budget->cpu_seconds, budget->wall_seconds, budget->commands, budget->bytes_out,
                               budget->money, static_cast<int>(budget->at_limit)));
  return {};
}

Result<void> SqliteStore::change_sandbox(const std::string& id, const SandboxChange& change) {
  return write([&](Database& db) { return write_change(db, id, change); });
}

Result<void> SqliteStore::set_lifetime(const std::string& id, const Lifetime& lifetime) {
  return change_sandbox(id, {.lifetime = lifetime});
}

Result<void> SqliteStore::set_metadata(const std::string& id, const Labels& metadata) {
  return change_sandbox(id, {.metadata = metadata});
}

Result<void> SqliteStore::set_network(const std::string& id, const std::string& network) {
  return change_sandbox(id, {.network = network});
}

Result<void> SqliteStore::set_budget(const std::string& id, const Budget& budget) {
  return change_sandbox(id, {.budget = budget});
}

Result<void> SqliteStore::touch(const Touched& sandboxes) {
  if (sandboxes.empty()) return {};
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update,
              db.prepare("UPDATE sandboxes SET last_active = ? WHERE id = ? AND last_active < ? AND state <> 'ended'"));
    for (const auto& [id, when] : sandboxes) {
      ISOLA_CHECK(update.bind(when, id, when).run());
      update.reset();
    }
    return {};
  });
}

Result<SandboxRecord> SqliteStore::find_sandbox(const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(fmt::format("SELECT {} FROM sandboxes WHERE id = ?", kSandboxColumns)));
  ISOLA_TRY(bool found, query.bind(id).step());
  if (!found) return fail(Code::not_found, "there is no sandbox " + id);
  return read_sandbox(query);
}

Result<SandboxRecord> SqliteStore::find_ended(const std::string& project, const std::string& name) {
  if (name.empty()) return fail(Code::not_found, "nothing has no name");
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(fmt::format("SELECT {} FROM sandboxes WHERE project = ? AND name = ? AND "
                                                       "name <> '' AND state = 'ended' ORDER BY ended DESC LIMIT 1",
                                                       kSandboxColumns)));
  ISOLA_TRY(bool found, query.bind(project, name).step());
  if (!found) return fail(Code::not_found, "no sandbox called " + name + " has ended");
  return read_sandbox(query);
}

Result<Labels> SqliteStore::names_of(const std::vector<std::string>& ids) {
  ISOLA_TRY(std::string list, to_json(ids, "ids"));
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare("SELECT id, name FROM sandboxes WHERE id IN (SELECT value FROM "
                                           "json_each(?)) AND name <> ''"));
  query.bind(list);
  Labels names;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return names;
    names[query.text(0)] = query.text(1);
  }
}

// A page ends where it has as many as were asked for, or is heavy enough: whoever holds the cursor loses nothing.
Result<SandboxPage> SqliteStore::list_sandboxes(const SandboxFilter& filter, const std::string& cursor, size_t limit) {
  ISOLA_TRY(PageRequest asked, PageRequest::of(cursor, limit));
  SandboxQuestion question(filter, asked);
  Connection& connection = filter.until ? patient_ : reader_;
  std::lock_guard lock(connection.mutex);
  connection.db.set_deadline(filter.until);
  struct Forever {
    Database& db;
    ~Forever() { db.set_deadline({}); }
  } after{connection.db};
  ISOLA_TRY(auto query, connection.db.prepare(question.sql()));
  question.bind(query);
  SandboxPage page;
  for (size_t bytes = 0;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) break;
    if (bytes >= kMostOfPage) {
      page.next = PageRequest::after(page.sandboxes.back());
      return page;
    }
    ISOLA_TRY(auto record, read_sandbox(query));
    bytes += weight(record);
    page.sandboxes.push_back(std::move(record));
  }
  page.next = asked.cut(page.sandboxes);
  return page;
}

Result<std::vector<SandboxRecord>> SqliteStore::living() {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(fmt::format(
                            "SELECT {} FROM sandboxes WHERE state <> 'ended' ORDER BY created, id", kSandboxColumns)));
  return read_all(query);
}

Result<size_t> SqliteStore::forget_ended_before(Millis when, size_t most) {
  size_t gone = 0;
  ISOLA_CHECK(write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM sandboxes WHERE rowid IN (SELECT rowid FROM sandboxes WHERE "
                                      "state = 'ended' AND ended < ? ORDER BY ended LIMIT ?)"));
    ISOLA_CHECK(remove.bind(when, most).run());
    gone = static_cast<size_t>(db.changed());
    return {};
  }));
  return gone;
}

}  // namespace isola::store
