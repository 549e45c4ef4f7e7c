// What a single sandbox can have at most on this machine.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace isola::launcher {

struct MachineBounds {
  uint64_t memory = 0;      // bytes
  double cpus = 0;          // those that are online
  uint64_t pids = 0;        // half of the machine's numbers: no sandbox may take all of them
  uint64_t open_files = 0;  // of one process
  uint64_t disk = 0;        // all that the disk below `folder` has; usual sizes are fine on small disks, where the
                            // reserve of the layer store watches over what is really used
};

// Root changes these while we run, but not between two launches of a burst: reading them takes as long as half of
// giving out a parked jail. They are read again when they are a second old.
class MachineBoundsReader {
 public:
  explicit MachineBoundsReader(std::string folder) : folder_(std::move(folder)) {}
  const MachineBounds& now();

 private:
  std::string folder_;
  MachineBounds known_;
  std::chrono::steady_clock::time_point read_{};
};

}  // namespace isola::launcher
