// What `isola doctor` says about disk limits: each provider is really tried (a small layer is made, over-filled and
// destroyed), because a filesystem that accepts a quota and ignores it is the worst case.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace isola::image {

struct ProviderReport {
  std::string name;
  bool works = false;
  std::string why;     // one sentence: what was found
  std::string advice;  // what an operator can do about it; empty when it works or nothing can be done
};

struct StoreReport {
  std::string dir;
  std::string filesystem;  // of dir: "ext4", "xfs", "btrfs", "tmpfs" or a hexadecimal magic
  std::vector<ProviderReport> providers;
  std::string chosen;  // the provider that open_layer_store takes by itself; empty: none enforces
};

// Works in a fresh folder below dir and leaves nothing behind.
Result<StoreReport> probe_layer_stores(const std::string& dir);

}  // namespace isola::image
