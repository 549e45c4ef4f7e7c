#include "kernel/mount.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel/fault.h"

namespace isola::kernel {

namespace {

// What the kernel wrote into the filesystem context about the last failure ("e overlay: …"), for the user's eyes.
std::string context_log(int fs) {
  char line[512];
  std::string all;
  for (ssize_t n; (n = ::read(fs, line, sizeof line)) > 2;)
    all += " (" + std::string(line + 2, static_cast<size_t>(n) - 2) + ")";
  return all;
}

}  // namespace

uint64_t MountAttributes::flags() const {
  uint64_t set = 0;
  if (read_only) set |= MOUNT_ATTR_RDONLY;
  if (nosuid) set |= MOUNT_ATTR_NOSUID;
  if (nodev) set |= MOUNT_ATTR_NODEV;
  if (noexec) set |= MOUNT_ATTR_NOEXEC;
  if (idmap >= 0) set |= MOUNT_ATTR_IDMAP;
  return set;
}

Result<Fd> open_filesystem_type(const std::string& type) {
  if (int e = fault::at("fsopen")) return sys_error("cannot open filesystem type " + type, e);
  Fd fs(::fsopen(type.c_str(), FSOPEN_CLOEXEC));
  if (!fs) return sys_error("cannot open filesystem type " + type);
  return fs;
}

Result<Fd> make_filesystem(const std::string& type, const std::vector<FilesystemOption>& options,
                           const MountAttributes& attributes) {
  ISOLA_TRY(Fd fs, open_filesystem_type(type));
  for (const auto& [key, value, object] : options) {
    int rc = object >= 0     ? ::fsconfig(fs.get(), FSCONFIG_SET_FD, key.c_str(), nullptr, object)
             : value.empty() ? ::fsconfig(fs.get(), FSCONFIG_SET_FLAG, key.c_str(), nullptr, 0)
                             : ::fsconfig(fs.get(), FSCONFIG_SET_STRING, key.c_str(), value.c_str(), 0);
    if (int e = rc < 0 ? errno : fault::at("fsconfig"))
      return sys_error(type + " refuses the option " + key + context_log(fs.get()), e);
  }
  if (int e = fault::at("fscreate")) return sys_error("cannot create a " + type + " filesystem", e);
  if (::fsconfig(fs.get(), FSCONFIG_CMD_CREATE, nullptr, nullptr, 0) < 0) {
    int e = errno;
    return sys_error("cannot create a " + type + " filesystem" + context_log(fs.get()), e);
  }
  if (int e = fault::at("fsmount")) return sys_error("cannot mount a " + type + " filesystem", e);
  Fd mount(::fsmount(fs.get(), FSMOUNT_CLOEXEC, static_cast<unsigned>(attributes.flags())));
  if (!mount) return sys_error("cannot mount a " + type + " filesystem");
  return mount;
}

Result<Fd> clone_tree(int dir, const std::string& path) {
  if (int e = fault::at("open_tree")) return sys_error("cannot clone the mount at " + path, e);
  Fd tree(::open_tree(dir, path.c_str(),
                      OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | (path.empty() ? AT_EMPTY_PATH : 0)));
  if (!tree) return sys_error("cannot clone the mount at " + path);
  return tree;
}

Result<void> set_attributes(int mount, const MountAttributes& attributes) {
  struct mount_attr attr{};
  attr.attr_set = attributes.flags();
  if (attributes.idmap >= 0) attr.userns_fd = static_cast<uint64_t>(attributes.idmap);
  if (int e = fault::at("mount_setattr")) return sys_error("cannot set the attributes of a mount", e);
  if (::mount_setattr(mount, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0)
    return sys_error(attributes.idmap >= 0 ? "cannot map the ids of a mount (the filesystem must allow idmapped mounts)"
                                           : "cannot set the attributes of a mount");
  return {};
}

Result<Fd> open_beneath(int dir, const std::string& path, int flags) {
  struct open_how how{};
  how.flags = static_cast<uint64_t>(flags | O_PATH | O_CLOEXEC | O_NOFOLLOW);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  if (int e = fault::at("openat2")) return sys_error("cannot open " + path, e);
  Fd fd(static_cast<int>(::syscall(SYS_openat2, dir, path.c_str(), &how, sizeof how)));
  if (!fd) return sys_error(errno == ELOOP ? path + " is, or lies behind, a symbolic link" : "cannot open " + path);
  return fd;
}

Result<void> attach(int mount, int dir, const std::string& path) {
  ISOLA_TRY(Fd target, open_beneath(dir, path, 0));
  if (int e = fault::at("move_mount")) return sys_error("cannot attach the mount at " + path, e);
  if (::move_mount(mount, "", target.get(), "", MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH) < 0)
    return sys_error("cannot attach the mount at " + path);
  return {};
}

Result<void> detach(const std::string& path) {
  if (::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) < 0) return sys_error("cannot unmount " + path);
  return {};
}

Result<void> make_all_slave() {
  if (int e = fault::at("isolate_mounts")) return sys_error("cannot isolate the mounts", e);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) < 0) return sys_error("cannot isolate the mounts");
  return {};
}

Result<void> make_all_private() {
  if (int e = fault::at("isolate_mounts")) return sys_error("cannot isolate the mounts", e);
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) < 0) return sys_error("cannot isolate the mounts");
  return {};
}

}  // namespace isola::kernel
