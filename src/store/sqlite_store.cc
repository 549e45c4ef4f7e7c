#include "store/sqlite_store.h"

#include "store/sqlite_schema.h"

namespace isola::store {

Result<std::unique_ptr<SqliteStore>> SqliteStore::open(const std::string& path, sqlite::Sync sync) {
  ISOLA_TRY(auto writer, sqlite::Database::open(path, kStoreSchema, sync));
  ISOLA_TRY(auto reader, sqlite::Database::open_reader(path));
  ISOLA_TRY(auto patient, sqlite::Database::open_reader(path));
  std::unique_ptr<SqliteStore> store(new SqliteStore(std::move(writer), std::move(reader), std::move(patient)));
  ISOLA_CHECK(store->find_bound());
  ISOLA_TRY(store->checkpointer_, Checkpointer::start(store->writer_.db));
  return store;
}

}  // namespace isola::store
