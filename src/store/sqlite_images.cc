// Images in the SQLite store, and the sandboxes that sleep in them.
#include <fmt/format.h>

#include "store/json_columns.h"
#include "store/sqlite_page.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Database;
using sqlite::Row;

constexpr std::string_view kImageColumns =
    "id, project, kind, name, sandbox, parent, template, digest, memory, memory_bytes, layer_bytes, created, "
    "last_used, expires_after, cpus, memory_limit, pids, disk, open_files, io_rate, env, metadata, volumes, user, cwd, "
    "exposed";

std::string select_images(std::string_view where) {
  return fmt::format("SELECT {} FROM images WHERE {}", kImageColumns, where);
}

std::unexpected<Error> no_image(const std::string& id) { return fail(Code::not_found, "there is no snapshot " + id); }

Result<ImageRecord> read_image(const sqlite::Statement& statement) {
  Row row(statement);
  ImageRecord image{.id = row.text(), .project = row.text()};
  auto kind = parse_image_kind(row.text());
  if (!kind) return fail(Code::corrupt, "the store holds a kind of image that this version does not know: " + image.id);
  image.kind = *kind;
  for (std::string* text : {&image.name, &image.sandbox, &image.parent, &image.template_name, &image.digest})
    *text = row.text();
  image.memory = row.flag();
  image.memory_bytes = row.integer<uint64_t>();
  image.layer_bytes = row.integer<uint64_t>();
  image.created = row.integer();
  image.last_used = row.integer();
  image.expires_after = row.integer();
  image.limits.cpus = row.real();
  image.limits.memory = row.integer<uint64_t>();
  image.limits.pids = row.integer<uint32_t>();
  image.limits.disk = row.integer<uint64_t>();
  image.limits.open_files = row.integer<uint32_t>();
  image.limits.io_bytes_per_second = row.integer<uint64_t>();
  ISOLA_TRY(image.env, labels_of(row.text()));
  ISOLA_TRY(image.metadata, labels_of(row.text()));
  ISOLA_TRY(image.volumes, volumes_of(row.text()));
  image.user = row.text();
  image.cwd = row.text();
  image.exposed = row.flag();
  return image;
}

Result<std::vector<ImageRecord>> read_images(sqlite::Statement& query) {
  std::vector<ImageRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto image, read_image(query));
    all.push_back(std::move(image));
  }
}

Result<void> insert(Database& db, const ImageRecord& image) {
  ISOLA_TRY(std::string env, to_json(image.env, "environment variables"));
  ISOLA_TRY(std::string metadata, to_json(image.metadata, "metadata"));
  ISOLA_TRY(std::string volumes, to_json(image.volumes));
  ISOLA_TRY(auto statement, db.prepare(fmt::format("INSERT INTO images ({}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
                                                   "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                                                   kImageColumns)));
  const auto& limits = image.limits;
  return statement
      .bind(image.id, image.project, to_string(image.kind), image.name, image.sandbox, image.parent,
            image.template_name, image.digest, image.memory, image.memory_bytes, image.layer_bytes, image.created,
            image.last_used, image.expires_after, limits.cpus, limits.memory, limits.pids, limits.disk,
            limits.open_files, limits.io_bytes_per_second, env, metadata, volumes, image.user, image.cwd, image.exposed)
      .run();
}

Result<void> check_stored(Database& db, const ImageRecord& image) {
  ISOLA_TRY(auto project, db.prepare("SELECT limit_stored, used_stored FROM projects WHERE id = ?"));
  ISOLA_TRY(bool found, project.bind(image.project).step());
  if (!found) return fail(Code::not_found, "there is no project " + image.project);
  auto most = static_cast<uint64_t>(project.integer(0)), used = static_cast<uint64_t>(project.integer(1));
  if (most == 0 || used + image.bytes() <= most) return {};
  return fail(Code::exhausted,
              fmt::format("project {} would exceed its limit of {} stored bytes ({} in use, {} asked for)",
                          image.project, most, used, image.bytes()));
}

// The pause that a sandbox has, if it has one. Snapshots are not its own.
Result<void> spend_pause_of(Database& db, const std::string& sandbox) {
  ISOLA_TRY(auto spend, db.prepare("UPDATE images SET kind = 'spent' WHERE kind = 'pause' AND id = "
                                   "(SELECT image FROM sandboxes WHERE id = ? AND image <> '')"));
  return spend.bind(sandbox).run();
}

// A snapshot; one that is gone stays gone.
Result<void> spend(Database& db, const std::string& id) {
  ISOLA_TRY(auto query, db.prepare("SELECT id FROM sandboxes WHERE image = ? AND image <> '' AND state <> 'ended'"));
  ISOLA_TRY(bool used, query.bind(id).step());
  if (used)
    return fail(Code::unavailable, fmt::format("sandbox {} is to be made from snapshot {}", query.text(0), id), EBUSY);
  query.reset();
  ISOLA_TRY(auto update, db.prepare("UPDATE images SET kind = 'spent' WHERE id = ? AND kind = 'snapshot'"));
  return update.bind(id).run();
}

// What is ending only ends.
Result<void> sleep_in(Database& db, const std::string& sandbox, State to, const std::string& image, Millis when,
                      const std::string& why) {
  ISOLA_TRY(auto update, db.prepare("UPDATE sandboxes SET state = ?, image = ?, asleep = ?, end_detail = ? "
                                    "WHERE id = ? AND state NOT IN ('ending', 'ended')"));
  ISOLA_CHECK(update.bind(to_string(to), image, when, why, sandbox).run());
  if (db.changed() == 0) return fail(Code::not_found, "there is no living sandbox " + sandbox);
  return {};
}

}  // namespace

Result<void> SqliteStore::insert_snapshot(const ImageRecord& image, const std::string& instead_of) {
  if (image.id.empty() || image.kind != ImageKind::snapshot) return fail(Code::invalid, "a snapshot needs an id");
  return write([&](Database& db) -> Result<void> {
    if (!instead_of.empty()) ISOLA_CHECK(spend(db, instead_of));
    ISOLA_CHECK(check_stored(db, image));
    if (!image.name.empty()) {
      ISOLA_TRY(auto query, db.prepare("SELECT id FROM images WHERE project = ? AND name = ? AND name <> '' AND "
                                       "kind = 'snapshot'"));
      ISOLA_TRY(bool taken, query.bind(image.project, image.name).step());
      if (taken)
        return fail(Code::exists, fmt::format("the name \"{}\" is taken by snapshot {}", image.name, query.text(0)));
      // Clients name both alike, and must not remove the one when they mean the other.
      std::string plain = image.name.substr(0, image.name.find(':'));
      ISOLA_TRY(auto other, db.prepare("SELECT 1 FROM templates WHERE project = ? AND name = ?"));
      ISOLA_TRY(bool built, other.bind(image.project, plain).step());
      if (built) return fail(Code::exists, fmt::format("the name \"{}\" is taken by a template", plain));
    }
    return insert(db, image);
  });
}

Result<void> SqliteStore::set_asleep(const std::string& id, State to, const ImageRecord& image, Millis when,
                                     const std::string& why) {
  if (!is_asleep(to)) return fail(Code::invalid, "that is not a way to sleep");
  return write([&](Database& db) -> Result<void> {
    ISOLA_CHECK(spend_pause_of(db, id));
    ISOLA_CHECK(insert(db, image));
    return sleep_in(db, id, to, image.id, when, why);
  });
}

Result<void> SqliteStore::set_rolled_back(const std::string& id, const std::string& snapshot, Millis when) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT memory FROM images WHERE id = ? AND kind = 'snapshot'"));
    ISOLA_TRY(bool found, query.bind(snapshot).step());
    if (!found) return no_image(snapshot);
    State to = query.integer(0) ? State::paused : State::stopped;
    query.reset();
    ISOLA_CHECK(spend_pause_of(db, id));
    return sleep_in(db, id, to, snapshot, when, {});
  });
}

Result<void> SqliteStore::set_awake(const std::string& id, Birth birth, const Lifetime& lifetime, uint64_t cpu_before,
                                    Millis when) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_CHECK(spend_pause_of(db, id));
    ISOLA_TRY(auto update, db.prepare("UPDATE sandboxes SET state = 'running', birth = ?, image = '', asleep = 0, "
                                      "deadline = ?, timeout = ?, cpu_before = ?, last_active = max(last_active, ?), "
                                      "end_detail = '' WHERE id = ? AND state NOT IN ('ending', 'ended')"));
    ISOLA_CHECK(update.bind(to_string(birth), lifetime.deadline, lifetime.timeout, cpu_before, when, id).run());
    if (db.changed() == 0) return fail(Code::not_found, "there is no living sandbox " + id);
    return {};
  });
}

Result<ImageRecord> SqliteStore::find_image(const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(select_images("id = ?")));
  ISOLA_TRY(bool found, query.bind(id).step());
  if (!found) return no_image(id);
  return read_image(query);
}

Result<ImageRecord> SqliteStore::find_snapshot(const std::string& project, const std::string& id_or_name) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare(select_images("project = ? AND kind = 'snapshot' AND (id = ? OR (name <> '' AND "
                                             "name = ?)) ORDER BY id = ? DESC")));
  ISOLA_TRY(bool found, query.bind(project, id_or_name, id_or_name, id_or_name).step());
  if (!found) return no_image(id_or_name);
  return read_image(query);
}

Result<Store::SnapshotPage> SqliteStore::list_snapshots(const std::string& project, const std::string& sandbox,
                                                        const std::string& cursor, size_t limit) {
  ISOLA_TRY(PageRequest asked, PageRequest::of(cursor, limit));
  std::lock_guard lock(reader_.mutex);
  const std::string where = "kind = 'snapshot' AND (? = '' OR project = ?) AND (? = '' OR sandbox = ?)";
  ISOLA_TRY(auto query, reader_.db.prepare(select_images(where + asked.sql())));
  asked.bind(query.bind(project, project, sandbox, sandbox));
  SnapshotPage page;
  ISOLA_TRY(page.snapshots, read_images(query));
  page.next = asked.cut(page.snapshots);
  return page;
}

Result<std::vector<ImageRecord>> SqliteStore::all_images() {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(select_images("1 ORDER BY created, id")));
  return read_images(query);
}

Result<std::vector<ImageRecord>> SqliteStore::expired_images(Millis now) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(
      auto query,
      reader_.db.prepare(select_images("expires_after > 0 AND kind = 'snapshot' AND last_used + expires_after <= ?")));
  query.bind(now);
  return read_images(query);
}

Result<void> SqliteStore::touch_image(const std::string& id, Millis when) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE images SET last_used = max(last_used, ?) WHERE id = ?"));
    return update.bind(when, id).run();
  });
}

Result<void> SqliteStore::spend_snapshot(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_CHECK(spend(db, id));
    if (db.changed() == 0) return no_image(id);
    return {};
  });
}

Result<void> SqliteStore::insert_build_image(const ImageRecord& image) {
  if (image.id.empty() || (image.kind != ImageKind::step && image.kind != ImageKind::built))
    return fail(Code::invalid, "an image of a build needs an id");
  return write([&](Database& db) -> Result<void> {
    ISOLA_CHECK(check_stored(db, image));
    return insert(db, image);
  });
}

Result<ImageRecord> SqliteStore::find_step(const std::string& project, const std::string& key) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare(select_images("project = ? AND kind = 'step' AND name = ? ORDER BY created DESC")));
  ISOLA_TRY(bool found, query.bind(project, key).step());
  if (!found) return no_image(key);
  return read_image(query);
}

Result<void> SqliteStore::set_packed(const std::string& id, State to, uint64_t memory_bytes, uint64_t layer_bytes) {
  if (!is_asleep(to)) return fail(Code::invalid, "only what sleeps is packed");
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto sandbox,
              db.prepare("UPDATE sandboxes SET state = ? WHERE id = ? AND state IN ('paused', 'stopped', 'archived')"));
    ISOLA_CHECK(sandbox.bind(to_string(to), id).run());
    if (db.changed() == 0) return fail(Code::not_found, "there is no sandbox " + id + " that sleeps");
    ISOLA_TRY(auto update,
              db.prepare("UPDATE images SET memory_bytes = ?, layer_bytes = ? WHERE kind = 'pause' AND id = "
                         "(SELECT image FROM sandboxes WHERE id = ?)"));
    return update.bind(memory_bytes, layer_bytes, id).run();
  });
}

Result<void> SqliteStore::spend_step(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE images SET kind = 'spent' WHERE id = ? AND kind = 'step'"));
    return update.bind(id).run();
  });
}

Result<void> SqliteStore::insert_warm(const ImageRecord& image) {
  if (image.id.empty() || image.kind != ImageKind::warm) return fail(Code::invalid, "a warm image needs an id");
  return write([&](Database& db) { return insert(db, image); });
}

Result<void> SqliteStore::spend_warm(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE images SET kind = 'spent' WHERE id = ? AND kind = 'warm'"));
    return update.bind(id).run();
  });
}

Result<void> SqliteStore::forget_image(const std::string& id) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM images WHERE id = ? AND kind = 'spent'"));
    return remove.bind(id).run();
  });
}

}  // namespace isola::store
