// What one data directory has in the kernel and on disk, counted: mounts, control groups, network namespaces,
// processes, files, loop devices, id ranges, and what its launcher and its gate hold. Taken before and after; equal, or
// something leaked.
//
// Other data directories live on the same machine at the same time, so only what can be traced to this one is
// counted: a sandbox is known by its id, and every id that was ever used is seen by watching the journal's folder.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"

namespace isola::e2e {

using Census = std::map<std::string, std::vector<std::string>>;  // kind → what there is of it, sorted

// One line per difference; empty: the same.
std::string difference(const Census& before, const Census& after);

class CensusTaker {
 public:
  // The data directory exists, and nothing has run on it yet.
  explicit CensusTaker(const std::string& data_dir);

  Census take();
  // Every sandbox id that the journal ever held.
  const std::set<std::string>& ids();

 private:
  bool ours(const std::string& pid);

  std::string data_dir_;
  Fd watch_;
  std::set<std::string> ids_;
};

}  // namespace isola::e2e
