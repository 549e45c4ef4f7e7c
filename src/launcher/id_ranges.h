// Host ids for sandboxes, machine-wide: each living sandbox has 65,536 ids of its own that nothing else on the machine
// uses. A range is taken by creating its file exclusively, so several launchers (data directories) share one machine
// without talking to each other. /run is empty after a boot, and so are the ranges.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace isola::launcher {

class IdRanges {
 public:
  static constexpr uint32_t kFirst = 0x40000000;  // above what distributions give to users and containers
  static constexpr uint32_t kCount = 16384;

  // `owner` goes into the file: whose range it is, for a person who looks.
  static Result<IdRanges> open(const std::string& owner, const std::string& folder = "/run/isola/ids");

  Result<uint32_t> take();      // the base of a free range
  void give_back(uint32_t base);
  // For a sandbox that was found alive after a restart: makes sure that its range is marked as taken.
  Result<void> keep(uint32_t base);

 private:
  std::string folder_, owner_;
  uint32_t next_ = 0;  // going round, so that a range rests before it is used again
};

}  // namespace isola::launcher
