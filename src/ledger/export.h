// Entries for others to read: one JSON object a line, all that is needed to check hashes and macs included.
#pragma once

#include <string>

#include "ledger/event.h"

namespace isola::ledger {

// Without the end of the line. `data` is an object where it is JSON, as it was written: its text is what was hashed.
std::string to_json_line(const Event& event);

}  // namespace isola::ledger
