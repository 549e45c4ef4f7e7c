// An image blob (erofs) as a mount: read-only and nodev; setuid programs keep working (sudo inside a sandbox reaches
// only the sandbox's own root). Backed by the file itself where the kernel can (Linux 6.12), else by a loop device
// that goes with the mount.
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image {

enum class BlobBacking { automatic, file, loop };

// A detached mount: clone it with open_tree/mount_setattr for an id map, attach it with move_mount, or just drop it.
Result<Fd> mount_blob(const std::string& path, BlobBacking backing = BlobBacking::automatic);

}  // namespace isola::image
