// A filesystem on a device or file as a detached mount (fsopen, fsconfig, fsmount), and attaching it.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image {

struct FsOptions {
  std::string type;                                          // "erofs"
  std::string source;                                        // /dev/loop3, or a file where the filesystem takes one
  std::vector<std::pair<std::string, std::string>> options;  // {"discard", "async"}; an empty value is a flag
  unsigned attributes = 0;                                   // MOUNT_ATTR_*
};

Result<Fd> make_mount(const FsOptions& options);
Result<void> attach_mount(const Fd& mount, const std::string& folder);
// Takes the mount off the folder at once; users that it still has keep it. Quiet when nothing is mounted there.
Result<void> detach_mount(const std::string& folder);

}  // namespace isola::image
