#pragma once

#include "base/error.h"
#include "bench/report.h"

namespace isola::bench {

Result<void> bench_inside(int rounds, int requests, Report& report);

}  // namespace isola::bench
