// Templates that were built, in the SQLite store: their builds, tags, logs and images.
#include <fmt/format.h>

#include "store/json_columns.h"
#include "store/sqlite_store.h"

namespace isola::store {

namespace {

using sqlite::Database;
using sqlite::Row;

constexpr std::string_view kTemplate = "SELECT id, project, name, created, published FROM templates WHERE ";
constexpr std::string_view kBuild =
    "SELECT b.id, b.template, b.project, b.state, b.why, b.step, b.spec, b.image, b.digest, b.base, b.memory, b.env, "
    "b.user, b.cwd, b.cpus, b.memory_limit, b.disk, b.created, b.finished FROM builds b ";

TemplateRecord read_template(const sqlite::Statement& statement) {
  Row row(statement);
  TemplateRecord one{.id = row.text(), .project = row.text(), .name = row.text()};
  one.created = row.integer();
  one.published = row.flag();
  return one;
}

Result<BuildRecord> read_build(const sqlite::Statement& statement) {
  Row row(statement);
  BuildRecord build{.id = row.text(), .template_id = row.text(), .project = row.text()};
  auto state = parse_build_state(row.text());
  if (!state) return fail(Code::corrupt, "the store holds a word that this version does not know, in " + build.id);
  build.state = *state;
  for (std::string* text : {&build.why, &build.step, &build.spec, &build.image, &build.digest, &build.base})
    *text = row.text();
  build.memory = row.flag();
  ISOLA_TRY(build.env, labels_of(row.text()));
  build.user = row.text();
  build.cwd = row.text();
  build.cpus = row.real();
  build.memory_limit = row.integer<uint64_t>();
  build.disk = row.integer<uint64_t>();
  build.created = row.integer();
  build.finished = row.integer();
  return build;
}

constexpr size_t kMostTags = 100;
constexpr size_t kIdLength = 21;
constexpr size_t kMostKnown = 1000;

std::unexpected<Error> no_build(const std::string& id) { return fail(Code::not_found, "there is no build " + id); }

Result<void> tag(Database& db, const std::string& template_id, const std::vector<std::string>& tags,
                 const std::string& build) {
  ISOLA_TRY(auto count, db.prepare("SELECT count(*) FROM template_tags WHERE template = ?"));
  ISOLA_TRY(bool counted, count.bind(template_id).step());
  if (counted && static_cast<size_t>(count.integer(0)) + tags.size() > kMostTags)
    return fail(Code::exhausted, fmt::format("a template has at most {} tags: remove some", kMostTags));
  count.reset();
  for (const auto& one : tags) {
    ISOLA_TRY(auto put, db.prepare("INSERT INTO template_tags (template, tag, build) VALUES (?, ?, ?) "
                                   "ON CONFLICT (template, tag) DO UPDATE SET build = excluded.build"));
    ISOLA_CHECK(put.bind(template_id, one, build).run());
  }
  return {};
}

}  // namespace

Result<void> SqliteStore::insert_template(const TemplateRecord& record) {
  if (record.id.empty() || record.name.empty()) return fail(Code::invalid, "a template needs an id and a name");
  return write_templates([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto query, db.prepare("SELECT 1 FROM templates WHERE project = ? AND name = ?"));
    ISOLA_TRY(bool taken, query.bind(record.project, record.name).step());
    if (taken) return fail(Code::exists, fmt::format("there is a template \"{}\" already", record.name));
    query.reset();
    // Nor after a snapshot, whatever tag that has: a create by this name would mean something else from here on.
    ISOLA_TRY(auto other, db.prepare("SELECT 1 FROM images WHERE project = ?1 AND kind = 'snapshot' AND "
                                     "(name = ?2 OR substr(name, 1, length(?2) + 1) = ?2 || ':')"));
    ISOLA_TRY(bool kept, other.bind(record.project, record.name).step());
    if (kept) return fail(Code::exists, fmt::format("the name \"{}\" is taken by a snapshot", record.name));
    other.reset();
    ISOLA_TRY(auto insert, db.prepare("INSERT INTO templates (id, project, name, created) VALUES (?, ?, ?, ?)"));
    return insert.bind(record.id, record.project, record.name, record.created).run();
  });
}

Result<TemplateRecord> SqliteStore::find_template(const std::string& project, const std::string& id_or_name) {
  auto none = [&] { return fail(Code::not_found, "there is no template " + id_or_name); };
  std::pair<std::string, std::string> key{project, id_or_name};
  {
    std::lock_guard lock(templates_.mutex);
    if (auto at = templates_.known.find(key); at != templates_.known.end()) {
      if (!at->second) return none();
      return *at->second;
    }
  }
  uint64_t before = templates_.changes;
  std::optional<TemplateRecord> record;
  {
    std::lock_guard lock(reader_.mutex);
    ISOLA_TRY(auto query,
              reader_.db.prepare(std::string(kTemplate) + "project = ? AND (id = ? OR name = ?) ORDER BY id = ? DESC"));
    ISOLA_TRY(bool found, query.bind(project, id_or_name, id_or_name, id_or_name).step());
    if (found) record = read_template(query);
  }
  {
    std::lock_guard lock(templates_.mutex);
    // Names that are none can be made up without end.
    if (templates_.known.size() >= kMostKnown) templates_.known.clear();
    if (templates_.changes == before) templates_.known[std::move(key)] = record;
  }
  if (!record) return none();
  return *record;
}

Result<TemplateRecord> SqliteStore::find_published(const std::string& id_or_path) {
  auto slash = id_or_path.find('/');
  // Every name that is none of one's own is asked for here: what is no id either costs nothing.
  if (slash == id_or_path.npos && !(id_or_path.starts_with('t') && id_or_path.size() == kIdLength))
    return fail(Code::not_found, "there is no template " + id_or_path);
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kTemplate) + (slash == id_or_path.npos
                                                                         ? "published AND id = ?"
                                                                         : "published AND project = ? AND name = ?")));
  if (slash == id_or_path.npos)
    query.bind(id_or_path);
  else
    query.bind(id_or_path.substr(0, slash), id_or_path.substr(slash + 1));
  ISOLA_TRY(bool found, query.step());
  if (!found) return fail(Code::not_found, "there is no template " + id_or_path);
  return read_template(query);
}

Result<void> SqliteStore::set_published(const std::string& id, bool published) {
  return write_templates([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE templates SET published = ? WHERE id = ?"));
    ISOLA_CHECK(update.bind(published, id).run());
    if (db.changed() == 0) return fail(Code::not_found, "there is no template " + id);
    return {};
  });
}

Result<void> SqliteStore::write_templates(const std::function<Result<void>(sqlite::Database&)>& work) {
  auto done = write(work);
  std::lock_guard lock(templates_.mutex);
  ++templates_.changes;
  templates_.known.clear();
  return done;
}

Result<std::vector<TemplateRecord>> SqliteStore::list_templates(const std::string& project) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kTemplate) + "project = ? ORDER BY name"));
  query.bind(project);
  std::vector<TemplateRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    all.push_back(read_template(query));
  }
}

Result<void> SqliteStore::remove_template(const std::string& id) {
  return write_templates([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto remove, db.prepare("DELETE FROM templates WHERE id = ?"));
    ISOLA_CHECK(remove.bind(id).run());
    if (db.changed() == 0) return fail(Code::not_found, "there is no template " + id);
    return {};
  });
}

Result<void> SqliteStore::put_build(const BuildRecord& build, const std::vector<std::string>& tags) {
  ISOLA_TRY(std::string env, to_json(build.env, "environment variables"));
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(
        auto put,
        db.prepare("INSERT INTO builds (id, template, project, state, why, step, spec, image, digest, base, "
                   "memory, env, user, cwd, cpus, memory_limit, disk, created, finished) "
                   "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                   "state = excluded.state, why = excluded.why, step = excluded.step, spec = excluded.spec, "
                   "image = excluded.image, digest = excluded.digest, base = excluded.base, "
                   "memory = excluded.memory, env = excluded.env, user = excluded.user, cwd = excluded.cwd, "
                   "cpus = excluded.cpus, memory_limit = excluded.memory_limit, disk = excluded.disk, finished = "
                   "excluded.finished"));
    auto done = put.bind(build.id, build.template_id, build.project, to_string(build.state), build.why, build.step,
                         build.spec, build.image, build.digest, build.base, build.memory, env, build.user, build.cwd,
                         build.cpus, build.memory_limit, build.disk, build.created, build.finished)
                    .run();
    if (!done || tags.empty()) return done;
    return tag(db, build.template_id, tags, build.id);
  });
}

Result<BuildRecord> SqliteStore::find_build(const std::string& template_id, const std::string& id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare(std::string(kBuild) + "WHERE b.template = ? AND b.id = ?"));
  ISOLA_TRY(bool found, query.bind(template_id, id).step());
  if (!found) return no_build(id);
  return read_build(query);
}

Result<std::vector<BuildRecord>> SqliteStore::list_builds(const std::string& template_id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare(std::string(kBuild) + "WHERE b.template = ? ORDER BY b.created DESC, b.id DESC"));
  query.bind(template_id);
  std::vector<BuildRecord> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    ISOLA_TRY(auto build, read_build(query));
    all.push_back(std::move(build));
  }
}

Result<void> SqliteStore::forget_old_builds(const std::string& template_id, size_t keep) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(
        auto remove,
        db.prepare("DELETE FROM builds WHERE template = ?1 AND state <> 'building' AND id NOT IN (SELECT build FROM "
                   "template_tags WHERE template = ?1) AND id NOT IN (SELECT id FROM builds WHERE template = ?1 "
                   "ORDER BY created DESC, id DESC LIMIT ?2)"));
    return remove.bind(template_id, keep).run();
  });
}

Result<BuildRecord> SqliteStore::tagged_build(const std::string& template_id, const std::string& tag) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query,
            reader_.db.prepare(std::string(kBuild) +
                               "JOIN template_tags t ON t.build = b.id WHERE t.template = ? AND t.tag = ?"));
  ISOLA_TRY(bool found, query.bind(template_id, tag).step());
  if (!found) return fail(Code::not_found, "there is no build with the tag " + tag);
  return read_build(query);
}

Result<void> SqliteStore::put_tags(const std::string& template_id, const std::vector<std::string>& tags,
                                   const std::string& build) {
  return write([&](Database& db) { return tag(db, template_id, tags, build); });
}

Result<void> SqliteStore::remove_tags(const std::string& template_id, const std::vector<std::string>& tags) {
  return write([&](Database& db) -> Result<void> {
    for (const auto& tag : tags) {
      ISOLA_TRY(auto remove, db.prepare("DELETE FROM template_tags WHERE template = ? AND tag = ?"));
      ISOLA_CHECK(remove.bind(template_id, tag).run());
      if (db.changed() == 0) return fail(Code::not_found, "the template has no tag " + tag);
    }
    return {};
  });
}

Result<std::map<std::string, std::string>> SqliteStore::tags_of(const std::string& template_id) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare("SELECT tag, build FROM template_tags WHERE template = ?"));
  query.bind(template_id);
  std::map<std::string, std::string> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    all[query.text(0)] = query.text(1);
  }
}

Result<void> SqliteStore::add_build_lines(const std::string& build, const std::vector<BuildLine>& lines) {
  return write([&](Database& db) -> Result<void> {
    for (const auto& line : lines) {
      ISOLA_TRY(auto insert, db.prepare("INSERT INTO build_lines (build, number, at, level, step, text) "
                                        "VALUES (?, ?, ?, ?, ?, ?)"));
      ISOLA_CHECK(insert.bind(build, line.number, line.at, line.level, line.step, line.text).run());
    }
    return {};
  });
}

Result<std::vector<BuildLine>> SqliteStore::build_lines(const std::string& build, uint64_t from, size_t most) {
  std::lock_guard lock(reader_.mutex);
  ISOLA_TRY(auto query, reader_.db.prepare("SELECT number, at, level, step, text FROM build_lines WHERE build = ? AND "
                                           "number >= ? ORDER BY number LIMIT ?"));
  query.bind(build, from, most);
  std::vector<BuildLine> all;
  for (;;) {
    ISOLA_TRY(bool more, query.step());
    if (!more) return all;
    Row row(query);
    BuildLine line{.number = row.integer<uint64_t>(), .at = row.integer()};
    for (std::string* text : {&line.level, &line.step, &line.text}) *text = row.text();
    all.push_back(std::move(line));
  }
}

Result<void> SqliteStore::fail_unfinished_builds(const std::string& why, Millis when) {
  return write([&](Database& db) -> Result<void> {
    ISOLA_TRY(auto update, db.prepare("UPDATE builds SET state = 'failed', why = ?, finished = ? "
                                      "WHERE state = 'building'"));
    return update.bind(why, when).run();
  });
}

Result<std::vector<std::string>> SqliteStore::spend_build_images(Millis when) {
  std::vector<std::string> spent;
  ISOLA_CHECK(write([&](Database& db) -> Result<void> {
    spent.clear();
    ISOLA_TRY(auto query,
              db.prepare("SELECT id FROM images WHERE kind IN ('step', 'built') AND last_used < ? AND id NOT IN "
                         "(SELECT b.image FROM builds b JOIN template_tags t ON t.build = b.id)"));
    query.bind(when);
    for (;;) {
      ISOLA_TRY(bool more, query.step());
      if (!more) break;
      spent.push_back(query.text(0));
    }
    query.reset();
    for (const auto& id : spent) {
      ISOLA_TRY(auto update, db.prepare("UPDATE images SET kind = 'spent' WHERE id = ?"));
      ISOLA_CHECK(update.bind(id).run());
    }
    return {};
  }));
  return spent;
}

}  // namespace isola::store
