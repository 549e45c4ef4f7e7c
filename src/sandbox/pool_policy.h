// How many parked sandboxes of one template (or warm image) to keep: as many as the busiest second of the last minute
// wanted, within bounds. A burst that comes again finds what it needs; what nobody wants any more goes after a minute.
//
//   PoolPolicy policy;
//   policy.wanted(now);                                   // a create came
//   uint32_t keep = policy.target(now, {.least = 1, .most = 16});
#pragma once

#include <array>
#include <cstdint>

#include "store/records.h"

namespace isola::sandbox {

struct PoolBounds {
  uint32_t least = 1, most = 16;  // least 0: no pool at all
  uint64_t free_memory = UINT64_MAX;
  uint64_t left = UINT64_MAX;  // of what all pools together may take, when the others have theirs
  uint64_t each = 0;           // bytes that one takes beyond a plain one's
  bool only_while = false;     // wanted: none is kept for nobody
  uint32_t ahead = 0;          // so many more than were wanted
};

// Not to be called from two threads at once.
class PoolPolicy {
 public:
  void wanted(store::Millis now);
  uint32_t target(store::Millis now, const PoolBounds& bounds) const;
  bool idle(store::Millis now) const;  // nobody wanted one within the last minute

 private:
  static constexpr int kSeconds = 60;
  struct Second {
    store::Millis at = -1;  // since 1970, in seconds
    uint32_t creates = 0;
  };
  std::array<Second, kSeconds> seconds_{};
};

// Bytes that so many parked ones take.
uint64_t pool_bytes(uint32_t count, uint64_t each);
// What the machine could give, in bytes.
uint64_t available_memory();

}  // namespace isola::sandbox
