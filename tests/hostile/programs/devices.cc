// Devices: a node that root makes is a way to the host's disks and memory unless the kernel refuses to open it.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/loop.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// Makes a node and opens it for reading. >= 0 the descriptor, -1 with the errno of the step that refused.
int open_node(const char* name, mode_t type, unsigned major, unsigned minor, int flags = O_RDONLY) {
  std::string path = work_dir() + "/" + name;
  ::unlink(path.c_str());
  if (::mknod(path.c_str(), type | 0666, makedev(major, minor)) != 0) return -1;
  int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  int saved = errno;
  ::unlink(path.c_str());
  errno = saved;
  return fd;
}

// As debugfs(8) would: read the disk below every filesystem.
Outcome block_device(const Args&) {
  Attempts attempts;
  auto list = slurp("/proc/partitions");
  std::vector<std::pair<unsigned, unsigned>> disks = {{254, 0}, {8, 0}, {259, 0}, {253, 0}, {7, 0}, {252, 0}};
  for (size_t at = 0; list && at < list->size();) {
    size_t end = list->find('\n', at);
    unsigned major = 0, minor = 0;
    if (::sscanf(list->c_str() + at, "%u %u", &major, &minor) == 2) disks.emplace_back(major, minor);
    at = end == std::string::npos ? list->size() : end + 1;
  }
  for (auto [major, minor] : disks) {
    int fd = open_node("blk", S_IFBLK, major, minor);
    char block[4096];
    if (fd >= 0 && ::pread(fd, block, sizeof block, 0) == static_cast<ssize_t>(sizeof block)) {
      attempts.worked(fmt::format("read block device {}:{}", major, minor));
    } else {
      attempts.add(fmt::format("block {}:{}", major, minor), -1);
    }
    if (fd >= 0) ::close(fd);
  }
  return attempts.outcome();
}

// Memory, ports, the log of the kernel, and a few devices whose drivers are a large surface. Only opened, never used;
// not those that act when opened (watchdog, snapshot).
Outcome char_devices(const Args&) {
  Attempts attempts;
  struct {
    const char* name;
    unsigned major, minor;
  } nodes[] = {{"mem", 1, 1},    {"port", 1, 4}, {"kmsg", 1, 11},  {"fuse", 10, 229},
               {"kvm", 10, 232}, {"tty0", 4, 0}, {"hpet", 10, 228}};
  for (auto [name, major, minor] : nodes) attempts.add(name, open_node(name, S_IFCHR, major, minor));
  return attempts.outcome();
}

// Even a node of a harmless device, made inside, shows that nodes work; archives with device nodes rely on it.
Outcome mknod_null(const Args&) {
  Attempts attempts;
  attempts.add("mknod null", open_node("null2", S_IFCHR, 1, 3));
  std::string path = work_dir() + "/suid-node";
  ::unlink(path.c_str());
  int made = ::mknod(path.c_str(), S_IFBLK | S_ISUID | 0666, makedev(254, 0));
  attempts.add("mknod setuid block device", made);
  ::unlink(path.c_str());
  return attempts.outcome();
}

Outcome visible_devices(const Args&) {
  Attempts attempts;
  for (const char* path : {"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/kcore", "/proc/kmsg", "/dev/vda",
                           "/dev/sda", "/dev/nvme0n1", "/dev/kvm", "/dev/fuse", "/dev/mapper/control", "/dev/vhost-net",
                           "/dev/vsock", "/dev/hwrng", "/dev/rtc0"}) {
    attempts.add(path, ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  }
  return attempts.outcome();
}

Outcome loop_control(const Args&) {
  int fd = ::open("/dev/loop-control", O_RDWR | O_CLOEXEC);
  if (fd < 0) fd = open_node("loopctl", S_IFCHR, 10, 237, O_RDWR);
  if (fd < 0) return judge("open loop-control", -1);
  return judge("LOOP_CTL_GET_FREE", ::ioctl(fd, LOOP_CTL_GET_FREE));
}

Outcome tun_tap(const Args&) {
  int fd = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC);
  if (fd < 0) fd = open_node("tun", S_IFCHR, 10, 200, O_RDWR);
  if (fd < 0) return judge("open tun", -1);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  ::strncpy(request.ifr_name, "evil%d", sizeof request.ifr_name - 1);
  return judge("TUNSETIFF", ::ioctl(fd, TUNSETIFF, &request));
}

// Bytes pushed into a terminal look as if the person there had typed them. Tried on a terminal of its own.
Outcome tiocsti(const Args&) {
  int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0) return untried("no terminal: " + errno_name(errno));
  ::grantpt(master);
  ::unlockpt(master);
  std::string name = ::ptsname(master) ? ::ptsname(master) : "";
  return in_child([&] {
    ::setsid();
    int tty = ::open(name.c_str(), O_RDWR);
    if (tty < 0) return untried("open terminal: " + errno_name(errno));
    ::ioctl(tty, TIOCSCTTY, 0);
    char byte = 'x';
    Attempts attempts;
    attempts.add("TIOCSTI", ::ioctl(tty, TIOCSTI, &byte));
    unsigned char mode[2] = {3, 0};  // TIOCLINUX paste is the same attack on a console
    int pasted = ::ioctl(tty, TIOCLINUX, mode);
    if (pasted < 0 && (errno == ENOTTY || errno == EPERM)) attempts.add("TIOCLINUX", -1);
    return attempts.outcome();
  });
}

constexpr Program kDevicePrograms[] = {
    {"block-device", "devices", "makes nodes of the disks and reads them below the filesystem", "mknod or open: EPERM",
     block_device, Expect::contained, kControlDisk},
    {"char-devices", "devices", "makes nodes of mem, port, kmsg, fuse, kvm and others and opens them",
     "mknod or open: EPERM", char_devices},
    {"mknod-any", "devices", "makes any device node at all, plain and setuid, as an archive would", "mknod: EPERM",
     mknod_null},
    {"visible-devices", "devices", "opens memory, disks and other devices that are already there", "not there",
     visible_devices, Expect::contained, 0, "",
     "which of them a machine shows differs; char-devices makes the same nodes itself and has a control"},
    {"loop-control", "devices", "asks for a loop device", "open: ENOENT or EPERM", loop_control, Expect::contained,
     kControlMayLack},
    {"tun-tap", "devices", "makes a network interface through /dev/net/tun", "open: ENOENT or EPERM", tun_tap,
     Expect::contained, kControlMayLack},
    {"tiocsti", "devices", "types into a terminal by TIOCSTI", "EPERM or EIO", tiocsti},
};

}  // namespace

Family device_programs() { return kDevicePrograms; }

}  // namespace isola::hostile
