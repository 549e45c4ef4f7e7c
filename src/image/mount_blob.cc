#include "image/mount_blob.h"

#include <sys/mount.h>

#include "base/file.h"
#include "image/fsmount.h"
#include "image/loop.h"

namespace isola::image {

namespace {

FsOptions erofs(const std::string& source) {
  return {.type = "erofs",
          .source = source,
          .options = {},
          .attributes = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME};
}

// Linux 6.18 prints one harmless warning when erofs reads a file on ext4 by itself (ext4_check_map_extents_env); on a
// machine where every warning is a panic that would be the end of it.
bool warnings_are_fatal() {
  auto setting = read_file("/proc/sys/kernel/panic_on_warn");
  return setting && !setting->starts_with("0");
}

Result<Fd> mount_over_loop(const std::string& path) {
  ISOLA_TRY(Loop loop, attach_loop(path, LoopMode::read_only));
  return make_mount(erofs(loop.path));
}

}  // namespace

Result<Fd> mount_blob(const std::string& path, BlobBacking backing) {
  if (backing == BlobBacking::automatic && warnings_are_fatal()) backing = BlobBacking::loop;
  if (backing == BlobBacking::loop) return mount_over_loop(path);
  auto mount = make_mount(erofs(path));
  if (mount || backing == BlobBacking::file) return mount;
  // Kernels that cannot take the file itself say that it is not a block device.
  if (mount.error().sys_errno != ENOTBLK) return mount;
  return mount_over_loop(path);
}

}  // namespace isola::image
