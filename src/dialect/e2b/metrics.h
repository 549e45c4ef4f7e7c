// What a sandbox uses, as both planes show it.
#pragma once

#include "sandbox/service.h"

namespace isola::e2b {

struct Measured {
  store::Millis at = 0;
  int cpus = 1;
  double cpu_percent = 0;  // of all its CPUs together, on average since it was made
  uint64_t memory_used = 0, memory_total = 0, disk_used = 0, disk_total = 0;
};

Task<Result<Measured>> measure(sandbox::Service& service, sandbox::BoxPtr box);

}  // namespace isola::e2b
