// Mounts by file descriptor (the fsopen/open_tree/move_mount family): nothing is ever attached by a path that a
// sandbox could have put a symlink into.
//
//   ISOLA_TRY(Fd lower, clone_tree(AT_FDCWD, "lower"));
//   ISOLA_CHECK(set_attributes(lower.get(), {.idmap = userns.get()}));
//   ISOLA_CHECK(attach(lower.get(), stage.get(), "l"));
#pragma once

#include <sys/mount.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::kernel {

// MOUNT_ATTR_* of <linux/mount.h>, by name.
struct MountAttributes {
  bool read_only = false;
  bool nosuid = false;
  bool nodev = false;
  bool noexec = false;
  int idmap = -1;  // a user namespace; ids on disk are seen through its map
  uint64_t flags() const;
};

struct FilesystemOption {
  std::string key;
  std::string value;  // empty, and no descriptor: a flag
  int fd = -1;        // an object given by descriptor instead
};

// Asks the kernel for a type of filesystem, and for the module that has it if none is loaded yet (/proc/filesystems
// lists only what is). ENODEV: there is none. Nothing is mounted.
Result<Fd> open_filesystem_type(const std::string& type);
// A new filesystem as a detached mount.
Result<Fd> make_filesystem(const std::string& type, const std::vector<FilesystemOption>& options,
                           const MountAttributes& attributes = {});
// A detached copy of the one mount at dir/path (not of what is mounted below it).
Result<Fd> clone_tree(int dir, const std::string& path);
Result<void> set_attributes(int mount, const MountAttributes& attributes);
// Attaches a detached mount on dir/path, where path is resolved without following any symlink or leaving dir.
Result<void> attach(int mount, int dir, const std::string& path);
// Takes the mount at `path` out of this namespace at once; users of it keep it until they are done.
Result<void> detach(const std::string& path);
// Opens dir/path (O_PATH) below dir without following symlinks: for mount points in a tree that is not ours.
Result<Fd> open_beneath(int dir, const std::string& path, int flags);
// Everything mounted in this namespace stays in it, and what happens in the parent's still arrives.
Result<void> make_all_slave();
Result<void> make_all_private();

}  // namespace isola::kernel
