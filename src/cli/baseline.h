// The security checklist of this field, point by point: held, not held or unknown, and by what evidence. It reads the
// store and the ledger of a data directory, with or without a server that runs on it, and changes nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "cli/commands.h"
#include "ledger/event.h"

namespace isola::cli {

// `project` is an id or a name; empty: all. Gives the exit code: 1 if a point is not held.
// `begins` is where files of the ledger that were moved away ended.
Result<int> audit_baseline(const Common& common, const std::string& project, const std::string& key_file,
                           const std::optional<ledger::Head>& begins);

}  // namespace isola::cli
