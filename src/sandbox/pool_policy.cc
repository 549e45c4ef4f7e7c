#include "sandbox/pool_policy.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/file.h"

namespace isola::sandbox {

namespace {
// Of a parked sandbox with its guest, kernel objects included; and how much of what is free may go into them.
constexpr uint64_t kEach = 8 << 20;
constexpr uint64_t kPart = 4;
}  // namespace

void PoolPolicy::wanted(store::Millis now) {
  auto& second = seconds_[static_cast<size_t>(now / 1000 % kSeconds)];
  if (second.at != now / 1000) second = {.at = now / 1000, .creates = 0};
  ++second.creates;
}

uint32_t PoolPolicy::target(store::Millis now, const PoolBounds& bounds) const {
  if (bounds.least == 0) return 0;
  uint32_t busiest = 0;
  for (const auto& second : seconds_)
    if (second.at > now / 1000 - kSeconds) busiest = std::max(busiest, second.creates);
  uint64_t fit = std::min(bounds.free_memory / kPart, bounds.left) / (kEach + bounds.each);
  uint64_t least = bounds.only_while ? 0 : bounds.least;
  uint64_t most = std::max<uint64_t>(least, std::min<uint64_t>(bounds.most, fit));
  return static_cast<uint32_t>(std::clamp<uint64_t>(uint64_t{busiest} + bounds.ahead, least, most));
}

bool PoolPolicy::idle(store::Millis now) const {
  return std::ranges::none_of(seconds_, [&](const Second& second) { return second.at > now / 1000 - kSeconds; });
}

uint64_t pool_bytes(uint32_t count, uint64_t each) { return count * (kEach + each); }

uint64_t available_memory() {
  auto text = read_file("/proc/meminfo", 16 << 10);
  unsigned long long kib = 0;
  const char* line = text ? std::strstr(text->c_str(), "MemAvailable:") : nullptr;
  if (!line || std::sscanf(line, "MemAvailable: %llu", &kib) != 1) return UINT64_MAX;
  return uint64_t{kib} << 10;
}

}  // namespace isola::sandbox
