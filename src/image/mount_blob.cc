#include "image/mount_blob.h"

#include "base/file.h"
#include "image/loop.h"
#include "kernel/mount.h"

namespace isola::image {

namespace {

Result<Fd> mount_erofs(const std::string& source) {
  auto mount = kernel::make_filesystem("erofs", {{"source", source}, {"ro", ""}}, {.read_only = true, .nodev = true});
  if (!mount) return std::unexpected(mount.error().in(source));
  return mount;
}

// Linux 6.18 prints one harmless warning when erofs reads a file on ext4 by itself (ext4_check_map_extents_env); on a
// machine where every warning is a panic that would be the end of it.
bool warnings_are_fatal() {
  auto setting = read_file("/proc/sys/kernel/panic_on_warn");
  return setting && !setting->starts_with("0");
}

Result<Fd> mount_over_loop(const std::string& path) {
  ISOLA_TRY(Loop loop, attach_loop(path, LoopMode::read_only));
  return mount_erofs(loop.path);
}

}  // namespace

Result<Fd> mount_blob(const std::string& path, BlobBacking backing) {
  if (backing == BlobBacking::automatic && warnings_are_fatal()) backing = BlobBacking::loop;
  if (backing == BlobBacking::loop) return mount_over_loop(path);
  auto mount = mount_erofs(path);
  if (mount || backing == BlobBacking::file) return mount;
  // Kernels that cannot take the file itself say that it is not a block device.
  if (mount.error().sys_errno != ENOTBLK) return mount;
  return mount_over_loop(path);
}

}  // namespace isola::image
