#include <fmt/format.h>

#include "store/sqlite.h"

namespace isola::sqlite {

Result<void> check_owner(Database& db, const Schema& schema) {
  ISOLA_TRY(int64_t owner, db.integer("PRAGMA application_id"));
  ISOLA_TRY(int64_t version, db.integer("PRAGMA user_version"));
  ISOLA_TRY(int64_t tables, db.integer("SELECT count(*) FROM sqlite_schema"));
  bool empty = owner == 0 && version == 0 && tables == 0;
  if (!empty && owner != schema.application_id)
    return fail(Code::invalid,
                fmt::format("{} is a database of something else, not a {} of Isola", db.path(), schema.what));
  if (version > static_cast<int64_t>(schema.steps.size()))
    return fail(
        Code::unsupported,
        fmt::format("the {} {} was written by a newer Isola (version {} of its form, this one knows up to {}): run "
                    "that one, or restore a backup",
                    schema.what, db.path(), version, schema.steps.size()));
  return {};
}

Result<void> migrate(Database& db, const Schema& schema) {
  for (;;) {
    // The version is read under the write lock: another process may be at the same work.
    ISOLA_TRY(auto change, Transaction::begin(db));
    ISOLA_CHECK(check_owner(db, schema));
    ISOLA_TRY(int64_t version, db.integer("PRAGMA user_version"));
    if (version == static_cast<int64_t>(schema.steps.size())) return {};
    if (auto done = db.run(std::string(schema.steps[static_cast<size_t>(version)])); !done)
      return std::unexpected(
          done.error().in(fmt::format("cannot bring the {} from version {} to {}", schema.what, version, version + 1)));
    ISOLA_CHECK(db.run(
        fmt::format("PRAGMA user_version = {}; PRAGMA application_id = {}", version + 1, schema.application_id)));
    ISOLA_CHECK(change.commit());
  }
}

}  // namespace isola::sqlite
