// Where a machine keeps its cgroup controllers: found from mountinfo, so that every way to mount them works, and so
// that tests can describe a machine by a text and a temporary folder.
//
// A machine is v2 when its v2 hierarchy has more of the controllers that we need than its v1 hierarchies have; a
// hybrid one, whose v2 mount carries none of them, is v1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace isola::kernel {

enum class CgroupVersion { v1, v2 };

struct CgroupOptions {
  std::string parent = "isola";                    // folder below each hierarchy's root that is ours
  std::string mountinfo = "/proc/self/mountinfo";  // a file, so that tests can bring their own
  std::vector<std::string> disks = {"/"};          // io limits are for the disks that these paths lie on
};

struct CgroupLayout {
  CgroupVersion version = CgroupVersion::v1;
  // Absolute folders `<mount>/<parent>`; empty: not there. On v2 all that exist are the same folder.
  std::string cpu, cpuacct, memory, pids, freezer, io;
  bool swap_accounting = false;  // v1: memory.memsw.* exists
  // "259:0", whole disks, each once; empty: the first path lies on none, and what is limited elsewhere helps little.
  std::vector<std::string> disk_devices;
  std::string off_disk;  // another path that lies on none
  std::string parent;

  // Every distinct folder that a new group gets (blkio of v1 is not among them: made on demand).
  std::vector<std::string> folders() const;
  std::vector<std::string> missing() const;
  std::string io_note() const;
  bool can_limit_io() const { return !io.empty() && !disk_devices.empty(); }
  // Not only reads, and on all of the disks.
  bool limits_all_io() const { return version == CgroupVersion::v2 && can_limit_io() && off_disk.empty(); }
};

Result<CgroupLayout> find_cgroup_layout(const CgroupOptions& options);

// "major:minor" of the whole disk (never a partition: the kernel throttles disks) that holds path, or will when it is
// made; an error where the file system has none (tmpfs, network).
Result<std::string> disk_device_of(const std::string& path);

// A group's name: 1 to 64 of [A-Za-z0-9_.-], not beginning with a dot or a dash. Anything else could leave our parent.
bool is_cgroup_name(std::string_view name);

}  // namespace isola::kernel
