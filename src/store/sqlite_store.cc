#include "store/sqlite_store.h"

#include "store/sqlite_schema.h"

namespace isola::store {

Result<std::unique_ptr<SqliteStore>> SqliteStore::open(const std::string& path, sqlite::Sync sync) {
  ISOLA_TRY(auto writer, sqlite::Database::open(path, kStoreSchema, sync));
  ISOLA_TRY(auto reader, sqlite::Database::open_reader(path));
  return std::unique_ptr<SqliteStore>(new SqliteStore(std::move(writer), std::move(reader)));
}

}  // namespace isola::store
