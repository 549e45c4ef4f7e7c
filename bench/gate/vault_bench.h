#pragma once

#include "base/error.h"
#include "bench/report.h"

namespace isola::bench {

// A stream through a pair of sockets, with and without the scanner; the goal is what the scanner takes of it.
Result<void> bench_scanner(int rounds, size_t bytes, Report& report);
// Entries of the ledger in a second: not waited for, and waited for until they are on the disk, by one and by many.
Result<void> bench_ledger(int rounds, int entries, Report& report);

}  // namespace isola::bench
