// What a breach could have changed on the host, to compare before and after.
//
//   HostFacts before = host_facts();
//   …
//   std::string what = changed(before, host_facts());    // "the host's clock", or empty
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace isola::cli {

struct HostFacts {
  std::map<std::string, std::string> settings;  // what a person calls it → its value
  int64_t clock_offset_ms = 0;                  // of the wall clock against the time since boot
};

HostFacts host_facts();

// The clock may drift by what a time service corrects in small steps, and no further.
inline constexpr int64_t kMostDriftMs = 1000;
std::string changed(const HostFacts& before, const HostFacts& after);

}  // namespace isola::cli
