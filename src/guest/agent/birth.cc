#include "guest/agent/birth.h"

#include <fcntl.h>
#include <ftw.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/file.h"
#include "guest/agent/rebirth.h"

namespace isola::guest {

namespace {

// From linux/ext4.h, which no header of the C library has.
constexpr unsigned long kResizeExt4 = _IOW('f', 16, uint64_t);
constexpr uint64_t kBlock = 4096;

Result<void> make_folder(const char* path, mode_t mode = 0755) {
  if (::mkdir(path, mode) < 0 && errno != EEXIST) return sys_error(std::string("cannot make ") + path);
  return {};
}

Result<void> mount_at(const char* what, const char* where, const char* type, unsigned long flags,
                      const char* options = "") {
  ISOLA_CHECK(make_folder(where));
  if (::mount(what, where, type, flags, options) < 0) return sys_error(std::string("cannot mount ") + where);
  return {};
}

// The disk is as large as the sandbox may fill; what is on it at first is small.
Result<void> grow(const char* disk, const char* where) {
  uint64_t bytes = 0;
  Fd device(::open(disk, O_RDONLY | O_CLOEXEC));
  Fd root(::open(where, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!device || !root || ::ioctl(device.get(), BLKGETSIZE64, &bytes) < 0) return sys_error("cannot look at the disk");
  uint64_t blocks = bytes / kBlock;
  if (::ioctl(root.get(), kResizeExt4, &blocks) < 0) return sys_error("cannot use the whole disk");
  return {};
}

void remove_tree(const char* folder) {
  auto remove = [](const char* path, const struct stat*, int, FTW*) { return ::remove(path), 0; };
  (void)::nftw(folder, remove, 16, FTW_DEPTH | FTW_PHYS);
}

Result<void> mount_root(const std::string& image, const std::string& disk) {
  ISOLA_CHECK(mount_at(image.c_str(), "/lower", "erofs", MS_RDONLY | MS_NODEV));
  // Nobody counts on it after a crash of this kernel: the sandbox ends with it.
  ISOLA_CHECK(mount_at(disk.c_str(), "/disk", "ext4", MS_NODEV | MS_NOATIME, "nobarrier"));
  ISOLA_CHECK(grow(disk.c_str(), "/disk"));
  // The file behind it is zero where nothing was written: no need to write that down.
  if (::mount(nullptr, "/disk", nullptr, MS_REMOUNT | MS_NODEV | MS_NOATIME, "noinit_itable,nobarrier") < 0)
    return sys_error("cannot set up the disk");
  // Of one that began as the files of another: it was told never to trust what is there after a crash.
  remove_tree("/disk/work");
  for (const char* folder : {"/disk/upper", "/disk/work"}) ISOLA_CHECK(make_folder(folder));
  return mount_at("isola", "/root", "overlay", 0,
                  "lowerdir=/lower,upperdir=/disk/upper,workdir=/disk/work,redirect_dir=on,volatile");
}

Result<void> make_node(const char* name, unsigned int major, unsigned int minor, mode_t mode) {
  const std::string path = std::string("/root/dev/") + name;
  if (::mknod(path.c_str(), S_IFCHR | mode, makedev(major, minor)) < 0 || ::chmod(path.c_str(), mode) < 0)
    return sys_error("cannot make " + path);
  return {};
}

Result<void> fill_dev() {
  ISOLA_CHECK(mount_at("isola", "/root/dev", "tmpfs", MS_NOSUID, "size=1m,mode=0755"));
  struct Node {
    const char* name;
    unsigned int major, minor;
    mode_t mode;
  };
  for (const char* folder : {"/root/dev/net", "/root/dev/pts", "/root/dev/shm", "/root/dev/mqueue"})
    ISOLA_CHECK(make_folder(folder));
  constexpr Node kNodes[] = {{"null", 1, 3, 0666},    {"zero", 1, 5, 0666},      {"full", 1, 7, 0666},
                             {"random", 1, 8, 0666},  {"tty", 5, 0, 0666},       {"fuse", 10, 229, 0666},
                             {"urandom", 1, 9, 0666}, {"net/tun", 10, 200, 0600}};
  for (const auto& node : kNodes) ISOLA_CHECK(make_node(node.name, node.major, node.minor, node.mode));
  constexpr std::pair<const char*, const char*> kLinks[] = {{"fd", "/proc/self/fd"},
                                                            {"stdin", "/proc/self/fd/0"},
                                                            {"stdout", "/proc/self/fd/1"},
                                                            {"stderr", "/proc/self/fd/2"},
                                                            {"ptmx", "pts/ptmx"}};
  for (auto [name, target] : kLinks)
    if (::symlink(target, (std::string("/root/dev/") + name).c_str()) < 0)
      return sys_error(std::string("cannot make /dev/") + name);
  const unsigned long quiet = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  ISOLA_CHECK(mount_at("devpts", "/root/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "ptmxmode=0666,mode=0620,gid=5"));
  ISOLA_CHECK(mount_at("isola", "/root/dev/shm", "tmpfs", quiet, "mode=1777"));
  ISOLA_CHECK(mount_at("mqueue", "/root/dev/mqueue", "mqueue", quiet));
  // What every sandbox is given: it came with this program.
  ISOLA_CHECK(mount_at("/isola", "/root/dev/.isola", nullptr, MS_BIND));
  if (::mount(nullptr, "/root/dev/.isola", nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, nullptr) <
      0)
    return sys_error("cannot make /dev/.isola read-only");
  return {};
}

Result<void> furnish() {
  const unsigned long quiet = MS_NOSUID | MS_NODEV | MS_NOEXEC;
  ISOLA_CHECK(fill_dev());
  ISOLA_CHECK(mount_at("proc", "/root/proc", "proc", quiet));
  ISOLA_CHECK(mount_at("sysfs", "/root/sys", "sysfs", quiet));
  ISOLA_CHECK(mount_at("cgroup2", "/root/sys/fs/cgroup", "cgroup2", quiet));
  return {};
}

// The archive's files stay below, where nothing leads to.
Result<void> enter_root() {
  if (::chdir("/root") < 0 || ::mount(".", "/", nullptr, MS_MOVE, nullptr) < 0 || ::chroot(".") < 0 || ::chdir("/") < 0)
    return sys_error("cannot enter the sandbox's root");
  return {};
}

std::string word(const char* name) {
  const char* value = ::getenv(name);
  return value ? value : "";
}

Result<void> limit(const std::string& files) {
  const rlim_t most = std::strtoul(files.c_str(), nullptr, 10);
  const rlimit open_files{most, most}, none{0, 0}, any{RLIM_INFINITY, RLIM_INFINITY};
  if (most == 0 || ::setrlimit(RLIMIT_NOFILE, &open_files) < 0 || ::setrlimit(RLIMIT_CORE, &none) < 0 ||
      ::setrlimit(RLIMIT_NPROC, &any) < 0)
    return sys_error("cannot set limits");
  return {};
}

// The host's seed came with the start of this kernel. Without it programs would wait, or worse, get what can be
// guessed.
Result<void> expect_randomness() {
  char some[16];
  if (::getrandom(some, sizeof some, GRND_NONBLOCK) != static_cast<ssize_t>(sizeof some))
    return sys_error("this kernel has no random numbers");
  return {};
}

// Threads of this kernel's own count, too.
Result<void> limit_processes(const std::string& processes) {
  const unsigned long most = std::strtoul(processes.c_str(), nullptr, 10);
  if (most == 0) return fail(Code::invalid, "no limit of processes was given");
  ISOLA_TRY(std::string load, read_file("/proc/loadavg", 4096));  // "0.00 0.00 0.00 1/34 56"
  const size_t slash = load.find('/');
  const unsigned long now = slash == std::string::npos ? 0 : std::strtoul(load.c_str() + slash + 1, nullptr, 10);
  return write_file("/proc/sys/kernel/threads-max", std::to_string(std::max(20UL, now + most)));
}

Result<Born> prepare() {
  const bool machine = !word("ISOLA_MACHINE").empty();
  Born born{.id = word("ISOLA_ID"), .line = {}, .packets = !machine};
  if (born.id.empty() && !machine) return fail(Code::invalid, "the sandbox has no name");
  ::umask(022);
  // 0, 1 and 2 must be taken; what is said there nobody reads.
  Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = 0; fd < 3; ++fd)
    if (!null || (null.get() != fd && ::dup2(null.get(), fd) < 0)) return sys_error("cannot begin");
  if (null.get() < 3) (void)null.release();
  ISOLA_CHECK(expect_randomness());
  ISOLA_CHECK(mount_at("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC));
  std::string image = "/dev/ubda", disk = "/dev/ubdb";
  if (machine) {
    ISOLA_CHECK(mount_at("sysfs", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC));
    ISOLA_CHECK(load_modules());
    ISOLA_TRY(image, disk_with("image"));
    ISOLA_TRY(disk, disk_with("disk"));
    ISOLA_TRY(born.line, open_serial_line());
    ISOLA_CHECK(forbid_halting());
    ISOLA_CHECK(expect_rebirth());
  } else {
    ISOLA_TRY(born.line, open_line());
    ISOLA_CHECK(take_device_apart());
  }
  ISOLA_CHECK(set_up_network());
  ISOLA_CHECK(mount_root(image, disk));
  ISOLA_CHECK(furnish());
  ISOLA_CHECK(limit(word("ISOLA_FILES")));
  ISOLA_CHECK(limit_processes(word("ISOLA_PROCESSES")));
  ISOLA_CHECK(enter_root());
  if (::sethostname("isola", 5) < 0 || ::setdomainname(born.id.data(), born.id.size()) < 0)
    return sys_error("cannot set the names of the sandbox");
  ::clearenv();
  return born;
}

}  // namespace

Result<Born> come_to_life() {
  if (!word("ISOLA_PROBE").empty()) say_that_it_works();
  ISOLA_CHECK(mount_at("devtmpfs", "/dev", "devtmpfs", MS_NOSUID | MS_NOEXEC));
  Fd log(::open("/dev/kmsg", O_WRONLY | O_CLOEXEC));
  auto born = prepare();
  // The kernel's messages are what the host looks at when there is no guest.
  if (!born && log) (void)write_all(log.get(), "<0>isola-guest: " + born.error().message + "\n");
  return born;
}

}  // namespace isola::guest
