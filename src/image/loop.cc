#include "image/loop.h"

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <cstring>

#include "image/tree.h"
#include "kernel/fault.h"

namespace isola::image {

namespace fault = kernel::fault;

Result<Loop> attach_loop(const std::string& file, LoopMode mode) {
  bool ro = mode == LoopMode::read_only;
  int access = (ro ? O_RDONLY : O_RDWR) | O_CLOEXEC;
  Fd backing(::open(file.c_str(), access));
  if (!backing) return sys_error("cannot open " + file);
  if (int e = fault::at("loop_control")) return sys_error("cannot open /dev/loop-control", e);
  Fd control(::open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control) return sys_error("cannot open /dev/loop-control");
  // Another process may take the free device between asking and configuring (EBUSY): ask again. Each lost race means
  // that somebody else won one, so this ends.
  for (int attempt = 0; attempt < 64; ++attempt) {
    if (int e = fault::at("loop_get_free")) return sys_error("no free loop device", e);
    int number = ::ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return sys_error("no free loop device");
    Loop loop{.fd = Fd(), .path = "/dev/loop" + std::to_string(number)};
    loop.fd = Fd(::open(loop.path.c_str(), access));
    if (!loop.fd) return sys_error("cannot open " + loop.path);
    loop_config config{};
    config.fd = static_cast<uint32_t>(backing.get());
    config.info.lo_flags = LO_FLAGS_AUTOCLEAR | (ro ? LO_FLAGS_READ_ONLY : LO_FLAGS_DIRECT_IO);
    std::strncpy(reinterpret_cast<char*>(config.info.lo_file_name), file.c_str(), LO_NAME_SIZE - 1);
    if (int e = fault::at("loop_configure")) return sys_error("cannot attach " + file + " to " + loop.path, e);
    if (::ioctl(loop.fd.get(), LOOP_CONFIGURE, &config) == 0) return loop;
    if (errno != EBUSY) return sys_error("cannot attach " + file + " to " + loop.path);
  }
  return fail(Code::unavailable, "loop devices are contended: none could be taken");
}

Result<std::optional<Loop>> find_loop(const std::string& file) {
  struct stat want;
  if (::stat(file.c_str(), &want) < 0) return sys_error("cannot find " + file);
  ISOLA_TRY(auto names, list_dir("/sys/block"));
  for (const auto& name : names) {
    // Only configured devices have this folder; asking sysfs first spares opening all the others.
    if (!name.starts_with("loop") || ::access(("/sys/block/" + name + "/loop").c_str(), F_OK) != 0) continue;
    Loop loop{.fd = Fd(), .path = "/dev/" + name};
    loop.fd = Fd(::open(loop.path.c_str(), O_RDWR | O_CLOEXEC));
    if (!loop.fd) loop.fd = Fd(::open(loop.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!loop.fd) continue;
    // Held open from here on, it cannot be cleared and given to another file.
    loop_info64 info{};
    if (::ioctl(loop.fd.get(), LOOP_GET_STATUS64, &info) < 0) continue;
    if (info.lo_inode == want.st_ino && info.lo_device == want.st_dev) return loop;
  }
  return std::nullopt;
}

Result<void> grow_loop(const Loop& loop) {
  if (int e = fault::at("loop_set_capacity")) return sys_error("cannot grow " + loop.path, e);
  if (::ioctl(loop.fd.get(), LOOP_SET_CAPACITY, 0) < 0) return sys_error("cannot grow " + loop.path);
  return {};
}

}  // namespace isola::image
