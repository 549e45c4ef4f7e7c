// The security checklist of this field, point by point: held, not held or unknown, and by what evidence. It reads the
// store and the ledger of a data directory, with or without a server that runs on it, and changes nothing.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"

namespace isola::cli {

// `project` is an id or a name; empty: all. Gives the exit code: 1 if a point is not held.
Result<int> audit_baseline(const Common& common, const std::string& project, const std::string& key_file);

}  // namespace isola::cli
