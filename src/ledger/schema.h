// The form of ledger.db, as the steps that lead to it.
#pragma once

#include "store/sqlite.h"

namespace isola::ledger {

extern const sqlite::Schema kLedgerSchema;

}  // namespace isola::ledger
