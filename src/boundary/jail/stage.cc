#include "boundary/jail/stage.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "boundary/boundary.h"
#include "kernel/mount.h"

namespace isola::boundary::jail {

namespace {

Result<void> make_node(const std::string& dev, const char* name, int major, int minor) {
  std::string path = dev + "/" + name;
  if (::mknod(path.c_str(), S_IFCHR | 0666, makedev(major, minor)) < 0 || ::chmod(path.c_str(), 0666) < 0)
    return sys_error("cannot create the device node " + path);
  return {};
}

Result<void> make_link(const std::string& dev, const char* name, const char* target) {
  if (::symlink(target, (dev + "/" + name).c_str()) < 0) return sys_error(std::string("cannot create ") + name);
  return {};
}

Result<void> put_file(const std::string& path, std::string_view text, mode_t mode) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return sys_error("cannot create " + path);
  ISOLA_CHECK(write_all(fd.get(), text));
  if (::fchmod(fd.get(), mode) < 0) return sys_error("cannot set the mode of " + path);
  return {};
}

Result<void> fill_dev(const std::string& dev, std::string_view program) {
  ISOLA_CHECK(make_node(dev, "null", 1, 3));
  ISOLA_CHECK(make_node(dev, "zero", 1, 5));
  ISOLA_CHECK(make_node(dev, "full", 1, 7));
  ISOLA_CHECK(make_node(dev, "random", 1, 8));
  ISOLA_CHECK(make_node(dev, "urandom", 1, 9));
  ISOLA_CHECK(make_node(dev, "tty", 5, 0));
  ISOLA_CHECK(make_link(dev, "fd", "/proc/self/fd"));
  ISOLA_CHECK(make_link(dev, "stdin", "/proc/self/fd/0"));
  ISOLA_CHECK(make_link(dev, "stdout", "/proc/self/fd/1"));
  ISOLA_CHECK(make_link(dev, "stderr", "/proc/self/fd/2"));
  ISOLA_CHECK(make_link(dev, "ptmx", "pts/ptmx"));
  ISOLA_CHECK(make_dirs(dev + "/pts"));
  ISOLA_CHECK(make_dirs(dev + "/shm"));
  return put_file(dev + (kGuestProgram + 4), program, 0111);
}

// A generator of random numbers for the OpenSSL of programs inside that a fork of the sandbox does not repeat.
Result<void> put_entropy(const std::string& programs, const std::string& folder) {
  ISOLA_CHECK(make_dirs(folder));
  const std::pair<const char*, const char*> files[] = {{"isola-rand.so", "isola-rand.so"},
                                                       {"isola-openssl.cnf", "openssl.cnf"}};
  for (auto [from, to] : files) {
    auto bytes = read_file(programs + from);
    if (!bytes) return std::unexpected(bytes.error().in("what every sandbox is given"));
    ISOLA_CHECK(put_file(folder + "/" + to, *bytes, 0444));
  }
  return {};
}

// Enough of /sys for programs that count processors; nothing of the host's.
Result<void> fill_sys() {
  long cpus = ::sysconf(_SC_NPROCESSORS_ONLN);
  std::string range = cpus > 1 ? fmt::format("0-{}\n", cpus - 1) : "0\n";
  ISOLA_CHECK(make_dirs("sys/fs/cgroup"));
  ISOLA_CHECK(make_dirs("sys/class/net"));
  for (long cpu = 0; cpu < cpus; ++cpu) ISOLA_CHECK(make_dirs(fmt::format("sys/devices/system/cpu/cpu{}", cpu)));
  for (const char* file : {"online", "possible", "present"})
    ISOLA_CHECK(put_file(std::string("sys/devices/system/cpu/") + file, range, 0444));
  ISOLA_CHECK(make_dirs("sys/kernel/mm/transparent_hugepage"));
  return put_file("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n", 0444);
}

}  // namespace

Result<void> set_stage(const StageOptions& options) {
  ISOLA_CHECK(make_dirs(options.folder, 0700));
  // nosuid would be inherited by nothing that matters, nodev would make the shared /dev useless.
  ISOLA_TRY(Fd tmpfs, kernel::make_filesystem("tmpfs", {{"source", "isola"}, {"size", "64m"}, {"mode", "0755"}}));
  Fd folder(::open(options.folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) return sys_error("cannot open " + options.folder);
  ISOLA_CHECK(kernel::attach(tmpfs.get(), folder.get(), "."));
  if (::chdir(options.folder.c_str()) < 0) return sys_error("cannot enter " + options.folder);
  for (const char* dir : {"dev", kRestoredDev, "sys", "empty", kNewRoot, kUpperPoint, kImages})
    ISOLA_CHECK(make_dirs(dir));
  for (size_t i = 0; i < kMostShown; ++i) ISOLA_CHECK(make_dirs(fmt::format("{}/{}", kShown, i)));
  ISOLA_CHECK(make_dirs(kCriuRun, 0700));
  ISOLA_CHECK(put_file("blank", "", 0444));
  ISOLA_CHECK(put_file("shut", "", 0));
  auto program = read_file(options.guest_program, 64 << 20);
  if (!program) return std::unexpected(program.error().in("the guest program"));
  // Executable but readable by nobody inside: then the memory of process 1 belongs to the host's user namespace, and
  // even the names of its descriptors are closed to the sandbox's root.
  ISOLA_CHECK(fill_dev("dev", *program));
  // There the engine has to read it: what protects process 1 is the engine.
  ISOLA_CHECK(make_dirs(kBoxPrograms));
  ISOLA_CHECK(put_file(std::string(kBoxPrograms) + "/isola-guest", *program, 0555));
  if (!options.programs.empty())
    for (const char* folder : {"dev/.isola", kBoxPrograms}) ISOLA_CHECK(put_entropy(options.programs, folder));
  return fill_sys();
}

}  // namespace isola::boundary::jail
