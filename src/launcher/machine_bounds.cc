#include "launcher/machine_bounds.h"

#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/file.h"

namespace isola::launcher {

namespace {

constexpr uint64_t kUsualDisk = uint64_t{16} << 30;
constexpr auto kFresh = std::chrono::seconds(1);

// One of the kernel's own limits; what cannot be read limits nothing.
uint64_t kernel_number(const char* path) {
  auto text = read_file(path);
  auto number = text ? std::strtoull(text->c_str(), nullptr, 10) : 0;
  return number ? number : UINT64_MAX;
}

// What cannot be asked limits nothing here: the layer store has the last word.
uint64_t disk_bytes(const std::string& folder) {
  struct statvfs s{};
  if (::statvfs(folder.c_str(), &s) < 0) return UINT64_MAX;
  return std::max(uint64_t{s.f_blocks} * s.f_frsize, kUsualDisk);
}

MachineBounds read_bounds(const std::string& folder) {
  struct sysinfo machine{};
  ::sysinfo(&machine);  // fails for no reason but a wrong address
  return {.memory = uint64_t{machine.totalram} * machine.mem_unit,
          .cpus = static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)),
          .pids = kernel_number("/proc/sys/kernel/pid_max") / 2,
          .open_files = kernel_number("/proc/sys/fs/nr_open"),
          .disk = disk_bytes(folder)};
}

}  // namespace

const MachineBounds& MachineBoundsReader::now() {
  auto time = std::chrono::steady_clock::now();
  if (read_ == decltype(read_){} || time - read_ >= kFresh) known_ = read_bounds(folder_), read_ = time;
  return known_;
}

}  // namespace isola::launcher
