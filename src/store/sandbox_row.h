// A sandbox's record and its row: the columns, in one order, both ways.
#pragma once

#include <string_view>

#include "base/error.h"
#include "store/records.h"
#include "store/sqlite.h"

namespace isola::store {

// The columns that a record consists of, for SELECT and INSERT, and as many question marks.
extern const std::string_view kSandboxColumns;
extern const std::string_view kSandboxMarks;

Result<void> bind_sandbox(sqlite::Statement& insert, const SandboxRecord& sandbox);
Result<SandboxRecord> read_sandbox(const sqlite::Statement& row);

// Projects carry a budget too: its five columns.
void bind_budget(sqlite::Statement& statement, const Budget& budget);
Budget read_budget(sqlite::Row& row);

}  // namespace isola::store
