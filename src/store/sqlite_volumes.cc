// Volumes in the SQLite store.
#include <fmt/format.h>

#include "store/json_columns.h"
#include "store/sqlite_page.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Database;
using sqlite::Row;

constexpr std::string_view kVolumeColumns = "id, project, name, size, created, labels, state";
constexpr uint64_t kLargestVolume = uint64_t{1} << 50;

std::string select_volumes(std::string_view where) {
  return fmt::format("SELECT {} FROM volumes WHERE {}", kVolumeColumns, where);
}

std::unexpected<Error> no_volume(const std::string& id) { return fail(Code::not_found, "there is no volume " + id); }

Result<VolumeRecord> read_volume(const sqlite::Statement& statement) {
  Row row(statement);
  VolumeRecord volume{.id = row.text(), .project = row.text(), .name = row.text(), .size = row.integer<uint64_t>()};
  volume.created = row.integer();
  ISOLA_TRY(volume.labels, labels_of(row.text()));
  auto state = parse_volume_state(row.text());
  if (!state) return fail(Code::corrupt, "the store holds a word that this version does not know, in " + volume.id);
  volume.state = *state;
  return volume;
}

Result<std::vector<VolumeRecord>> read_volumes(sqlite::Statement& query) {
  std::vector<VolumeRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto volume, read_volume(query));
    all.push_back(std::move(volume));
  }
}

Result<void> check_room(Database& db, const std::string& project, uint64_t more) {
  ISOLA_TRY(auto query, db.prepare("SELECT limit_stored, used_stored FROM projects WHERE id = ?"));
  ISOLA_TRY(bool found, query.bind(project).step());
  if (!found) return fail(Code::not_found, "there is no project " + project);
  auto most = static_cast<uint64_t>(query.integer(0)), used = static_cast<uint64_t>(query.integer(1));
  if (most == 0 || used + more <= most) return {};
  return fail(Code::exhausted, fmt::format("project {} would exceed its limit of {} stored bytes ({} in use, {} asked "
                                           "for)",
                                           project, most, used, more));
}

// Those that have not ended: one that sleeps is made again with it.
Result<std::vector<std::string>> users(Database& db, const std::string& id) {
  ISOLA_TRY(auto query,
            db.prepare("SELECT DISTINCT s.id FROM sandboxes s, json_each(s.volumes) v WHERE s.volumes <> '[]' AND "
                       "s.state <> 'ended' AND json_extract(v.value, '$.volume') = ? ORDER BY s.id"));
  query.bind(id);
  std::vector<std::string> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    all.push_back(query.text(0));
  }
}

}  // namespace

Result<void> SqliteStore::insert_volume(const VolumeRecord& volume) {
  if (volume.id.empty() || volume.name.empty()) return fail(Code::invalid, "a volume needs an id and a name");
  if (volume.size > kLargestVolume) return fail(Code::invalid, "the size of the volume is beyond any machine");
  ISOLA_TRY(std::string labels, to_json(volume.labels, "labels"));
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT id FROM volumes WHERE project = ? AND name = ? AND state <> 'gone'"));
    ISOLA_TRY(bool taken, query.bind(volume.project, volume.name).step());
    if (taken)
      return fail(Code::exists, fmt::format("the name \"{}\" is taken by volume {}", volume.name, query.text(0)));
    query.reset();
    ISOLA_CHECK(check_room(db, volume.project, volume.size));
    ISOLA_TRY(auto insert,
              db.prepare(fmt::format("INSERT INTO volumes ({}) VALUES (?, ?, ?, ?, ?, ?, 'making')", kVolumeColumns)));
    return insert.bind(volume.id, volume.project, volume.name, volume.size, volume.created, labels).run();
  });
}

Result<void> SqliteStore::set_volume_there(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE volumes SET state = 'there' WHERE id = ? AND state = 'making'"));
    ISOLA_CHECK(update.bind(id).run());
    if (db.changed() == 0) return no_volume(id);
    return {};
  });
}

Result<void> SqliteStore::set_volume_size(const std::string& id, uint64_t size) {
  if (size > kLargestVolume) return fail(Code::invalid, "the size of the volume is beyond any machine");
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT project, size FROM volumes WHERE id = ? AND state = 'there'"));
    ISOLA_TRY(bool found, query.bind(id).step());
    if (!found) return no_volume(id);
    auto before = static_cast<uint64_t>(query.integer(1));
    if (size > before) ISOLA_CHECK(check_room(db, query.text(0), size - before));
    query.reset();
    ISOLA_TRY(auto update, db.prepare("UPDATE volumes SET size = ? WHERE id = ?"));
    return update.bind(size, id).run();
  });
}

Result<VolumeRecord> SqliteStore::find_volume(const std::string& project, const std::string& id_or_name) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(select_volumes("project = ? AND state = 'there' AND (id = ? OR name = ?)")));
  ISOLA_TRY(bool found, query.bind(project, id_or_name, id_or_name).step());
  if (!found) return no_volume(id_or_name);
  return read_volume(query);
}

Result<VolumeRecord> SqliteStore::find_volume_of_any(const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(select_volumes("state = 'there' AND id = ?")));
  ISOLA_TRY(bool found, query.bind(id).step());
  if (!found) return no_volume(id);
  return read_volume(query);
}

Result<Store::VolumePage> SqliteStore::list_volumes(const std::string& project, const std::string& cursor,
                                                    size_t limit) {
  ISOLA_TRY(PageRequest asked, PageRequest::of(cursor, limit));
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(select_volumes("project = ? AND state = 'there'" + asked.sql())));
  asked.bind(query.bind(project));
  VolumePage page;
  ISOLA_TRY(page.volumes, read_volumes(query));
  page.next = asked.cut(page.volumes);
  return page;
}

Result<std::vector<VolumeRecord>> SqliteStore::all_volumes() {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(select_volumes("1 ORDER BY created, id")));
  return read_volumes(query);
}

Result<std::vector<std::string>> SqliteStore::users_of_volume(const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  return users(reader_.db, id);
}

Result<void> SqliteStore::retire_volume(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto used, users(db, id));
    if (!used.empty())
      return fail(Code::unavailable,
                  fmt::format("volume {} is mounted in {} sandbox{}: {}", id, used.size(), used.size() == 1 ? "" : "es",
                              used.front()),
                  EBUSY);
    ISOLA_TRY(auto update, db.prepare("UPDATE volumes SET state = 'gone' WHERE id = ? AND state <> 'gone'"));
    ISOLA_CHECK(update.bind(id).run());
    if (db.changed() == 0) return no_volume(id);
    return {};
  });
}

Result<void> SqliteStore::forget_volume(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM volumes WHERE id = ? AND state = 'gone'"));
    return remove.bind(id).run();
  });
}

}  // namespace isola::store
