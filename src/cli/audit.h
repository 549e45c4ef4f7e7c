// What `isola audit` and the baseline share: the ledger's files, read without a server or beside one.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "ledger/ratchet.h"

namespace isola::cli {

struct AuditPlace {
  std::string folder, ledger, store, key_file;
};
AuditPlace audit_place(const std::string& data_dir);

// The key that was named, which must be there, or the usual one, which may be kept elsewhere.
Result<std::optional<ledger::VerificationKeys>> audit_keys(const std::string& named, const std::string& usual);

// From here on as whoever owns the folder: its files were written by a process without privileges, and what reads them
// needs none. step_up() undoes it.
Result<void> step_down(const std::string& folder);
Result<void> step_up();

}  // namespace isola::cli
