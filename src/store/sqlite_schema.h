// The form of store.db, as the steps that lead to it.
#pragma once

#include "store/sqlite.h"

namespace isola::store {

extern const sqlite::Schema kStoreSchema;

}  // namespace isola::store
