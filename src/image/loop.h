// Loop devices: a file as a block device.
//
// Always with autoclear: the kernel lets the device go when the last user (an open descriptor or a mount) is gone, so
// a process that dies in the middle leaks none. Keep the Fd until the device is mounted, then drop it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image {

struct Loop {
  Fd fd;
  std::string path;  // /dev/loopN
};

enum class LoopMode { read_only, read_write };

Result<Loop> attach_loop(const std::string& file, LoopMode mode);
// The device that already stands on this file (by device and inode, not by name), held open; nullopt: there is none.
Result<std::optional<Loop>> find_loop(const std::string& file);
// Tells the device that its file has grown.
Result<void> grow_loop(const Loop& loop);

}  // namespace isola::image
