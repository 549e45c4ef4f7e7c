// A ledger in several files. Rotating it ends the file ledger.db, which becomes ledger-FIRST-LAST.db beside it, and
// begins a new one whose first entry (ledger.rotated) follows the last of the old: numbers, chain and keys go on. The
// sums of usage go on, too. Old files may be moved away, and can be verified wherever they are.
//
//   ISOLA_TRY(Rotation done, ledger->rotate());                        // of one that is open
//   ISOLA_TRY(Rotation done, rotate(data + "/ledger.db"));             // of one that nobody writes
//   ISOLA_TRY(Verdict verdict, verify_all(data + "/ledger.db", {.keys = &keys}));
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "ledger/ledger.h"

namespace isola::ledger {

// unavailable: a server has it open. `new_key` gives the ledger a new key for what follows (a ratchet that is lost).
Result<Rotation> rotate(const std::string& path, const std::function<Result<void>(uint64_t next)>& new_key = {});

// The files of a ledger that are here, the oldest first; `path` is the last.
Result<std::vector<std::string>> segments_of(const std::string& path);
// By its name: whether a file can have entries with numbers that the filter wants.
bool may_hold(const std::string& file, const EventFilter& filter);
// One after the other. What is broken is named with its file in `what`, where there are several. Where the first of
// them does not begin with entry 1, somebody has to vouch for that: a checkpoint of that very place, or `begins`.
Result<Verdict> verify_all(const std::string& path, const VerifyOptions& options = {});
// The same where a server writes or wrote it, not of a backup: also whether its key of the moment fits the end.
Result<Verdict> verify_living(const std::string& path, const VerifyOptions& options = {});

// For whoever writes it: ends the file, whose connection is closed, and makes the next one with its first entry.
Result<Rotation> end_file(const std::string& path, std::optional<sqlite::Database>& db, Ratchet& ratchet, Head& head);
// What comes before the first entry of a file.
Result<Head> segment_start(sqlite::Database& db);
// A rotation that was killed halfway.
Result<void> finish_rotation(const std::string& path);
// The lock that writers hold.
Result<Fd> take_ledger(const std::string& path);
Result<Head> last_entry(sqlite::Database& db);
// Of the sums that a file begins with: what its first entry says of them.
Result<std::string> opening_digest(sqlite::Database& db);

}  // namespace isola::ledger
