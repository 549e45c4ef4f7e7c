// A control group that lives as long as one control run: memory and number of processes are bounded, on v1 and on v2.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace isola::hostile {

class ControlGroup {
 public:
  static Result<ControlGroup> create(const std::string& name, long memory_bytes, long pids);
  ControlGroup(ControlGroup&&) = default;
  ControlGroup(const ControlGroup&) = delete;
  ~ControlGroup();  // kills whoever is left inside, then removes it

  bool join() const;  // the calling process; async-signal-safe enough for a forked child

 private:
  ControlGroup() = default;
  std::vector<std::string> dirs_;  // one on v2, one per controller on v1
};

// Mounts the caller's own groups at `at`, writable, as a careless runtime would. Called inside a new cgroup namespace.
bool show_group(const std::string& at);

}  // namespace isola::hostile
