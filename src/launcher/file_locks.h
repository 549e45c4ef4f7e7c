// Locks on files are memory of the kernel that no control group counts: some 200 bytes for each range of bytes, and as
// many of them as a program likes. So they are counted here, and traced to the sandbox that holds them.
//
//   if (lock_objects().value_or(0) > kManyLocks) …                        // cheap: one small file
//   ISOLA_TRY(auto found, find_lock_hoarder(holders, groups, kLockShare)) // slow: in a helper
//
// A lock in /proc/locks names its filesystem, and most of those are one sandbox's alone. (It names a process, too; but
// a lock may outlive the process that took it, and then the number is anybody's.) What lies on a filesystem that
// several have (files in memory, pipes, /dev, volumes) is looked for behind the descriptors of the sandboxes'
// processes. A descriptor on its way through a socket is behind none of them: docs/threat-model.md.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernel/cgroup.h"

namespace isola::launcher {

// On the machine; above that each sandbox may have its share, which is far more than programs take.
inline constexpr uint64_t kManyLocks = 200'000, kLockShare = 20'000;

// The filesystem of a line of /proc/locks, as mountinfo writes it: "0:45". Empty: none, or unreadable.
std::string lock_device(std::string_view line);
// Every filesystem of a mountinfo.
std::vector<std::string> devices_in(std::string_view mountinfo);
// The lock that a line of fdinfo is about, as the kernel describes it; or nothing.
std::string_view lock_of_descriptor(std::string_view line);

// How many lock objects the kernel has at most, with those of other kinds that it keeps beside them. Nothing: it does
// not say.
std::optional<uint64_t> lock_objects();

struct LockHolder {
  std::string id;
  pid_t first = 0;  // a process that has its mounts
};
struct LockHoarder {
  std::string id;  // empty: nobody holds more than the share
  uint64_t locks = 0;
};
// Reads /proc/locks until somebody's share is exceeded. The kernel walks over all lines before each page of it, and
// nobody on the machine takes a lock meanwhile: the sooner it ends the better, and the newest are the first.
Result<LockHoarder> find_lock_hoarder(const std::vector<LockHolder>& holders, const kernel::CgroupTree& groups,
                                      uint64_t share);

}  // namespace isola::launcher
