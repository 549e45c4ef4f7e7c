#include "image/fsmount.h"

#include <fcntl.h>
#include <sys/mount.h>

#include "kernel/fault.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

// The kernel says in words what it did not like; the words are read from the context itself.
std::unexpected<Error> refused(const Fd& context, const std::string& what, int error) {
  std::string words;
  char line[512];
  for (;;) {
    ssize_t n = ::read(context.get(), line, sizeof line);
    if (n <= 2) break;
    if (line[0] == 'e') words += (words.empty() ? " (" : "; ") + std::string(line + 2, static_cast<size_t>(n) - 2);
  }
  while (!words.empty() && words.back() == '\n') words.pop_back();
  return sys_error(what + (words.empty() ? "" : words + ")"), error);
}

}  // namespace

Result<Fd> make_mount(const FsOptions& o) {
  std::string what = "cannot mount " + o.source + " as " + o.type;
  if (int e = fault::at("fsopen")) return sys_error(what, e);
  Fd context(::fsopen(o.type.c_str(), FSOPEN_CLOEXEC));
  if (!context) return sys_error(what);
  if (int e = fault::at("fsconfig")) return sys_error(what, e);
  if (::fsconfig(context.get(), FSCONFIG_SET_STRING, "source", o.source.c_str(), 0) < 0)
    return refused(context, what, errno);
  if (o.attributes & MOUNT_ATTR_RDONLY)
    if (::fsconfig(context.get(), FSCONFIG_SET_FLAG, "ro", nullptr, 0) < 0) return refused(context, what, errno);
  for (const auto& [key, value] : o.options) {
    bool flag = value.empty();
    if (::fsconfig(context.get(), flag ? FSCONFIG_SET_FLAG : FSCONFIG_SET_STRING, key.c_str(),
                   flag ? nullptr : value.c_str(), 0) < 0)
      return refused(context, what + " with " + key, errno);
  }
  if (int e = fault::at("fsconfig_create")) return sys_error(what, e);
  if (::fsconfig(context.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) < 0) return refused(context, what, errno);
  if (int e = fault::at("fsmount")) return sys_error(what, e);
  Fd mount(::fsmount(context.get(), FSMOUNT_CLOEXEC, o.attributes));
  if (!mount) return refused(context, what, errno);
  return mount;
}

Result<void> attach_mount(const Fd& mount, const std::string& folder) {
  if (int e = fault::at("move_mount")) return sys_error("cannot attach a mount to " + folder, e);
  if (::move_mount(mount.get(), "", AT_FDCWD, folder.c_str(), MOVE_MOUNT_F_EMPTY_PATH) < 0)
    return sys_error("cannot attach a mount to " + folder);
  return {};
}

Result<void> detach_mount(const std::string& folder) {
  if (int e = fault::at("umount")) return sys_error("cannot unmount " + folder, e);
  if (::umount2(folder.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) < 0 && errno != EINVAL && errno != ENOENT)
    return sys_error("cannot unmount " + folder);
  return {};
}

}  // namespace isola::image
