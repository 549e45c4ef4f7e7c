#include "boundary/latency.h"

namespace isola {

std::string_view to_string(Step step) {
  constexpr std::string_view kNames[] = {"layer",   "cgroups", "buckets", "clone",  "identity", "root",    "network",
                                         "furnish", "verify",  "exec",    "boot",   "claim",    "restore", "relink",
                                         "dump",    "files",   "sums",    "commit", "clear"};
  static_assert(std::size(kNames) == static_cast<size_t>(Step::count_));
  return kNames[static_cast<size_t>(step)];
}

std::chrono::nanoseconds Latency::total() const {
  std::chrono::nanoseconds sum{0};
  for (auto step : steps_) sum += step;
  return sum;
}

}  // namespace isola
