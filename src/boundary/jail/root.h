// The root filesystem of a jail: the image below, the sandbox's writable layer above, both seen through the sandbox's
// id map, so that on disk every file has canonical ids (0…65535) whatever range the sandbox has today.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/boundary.h"
#include "kernel/mount.h"

namespace isola::boundary::jail {

struct Root {
  Fd mount;  // detached
  std::vector<Fd>
      layers;  // no longer needed; dropping them makes the kernel wait (RCU), so it is left to the caller when
};

// An overlay. `lowers` (the uppermost first: frozen layers, then the image) and `layer` are folders in this
// mount namespace; `userns` is the sandbox's, whose map is already written; `id_base` is its first host id.
Result<Root> make_root(const std::vector<std::string>& lowers, const std::string& layer, int userns, uint32_t id_base,
                       const kernel::MountAttributes& attributes);

// A folder that is shown to a jail, through the same map, and never with more rights than it is shown with.
Result<Fd> prepare_shown(const ShownFolder& shown, int userns);

}  // namespace isola::boundary::jail
