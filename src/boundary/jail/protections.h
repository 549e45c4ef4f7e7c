// The jail's protections as data: one description that the child furnishes itself by, and that the launcher compares
// with what is really installed before the first guest instruction runs. A difference kills the launch.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kernel/cgroup.h"
#include "kernel/mount.h"

namespace isola::boundary::jail {

// One mount of the sandbox, in the order in which it is made.
struct MountRule {
  enum class From {
    filesystem,  // a new one of type `source`
    stage,       // a copy of `source` below the launcher's stage
    itself,      // the folder at `target`, bound onto itself to change its attributes
    shown,       // a folder that the caller shows: the host's, or a volume
    // Of a box around an engine only:
    root,  // the sandbox's files, an overlay
    own,   // a file `source` that was put into the box's own root, which has `options`
    host,  // a file of the host, named by `source`: the engine's program
    wire,  // the network namespace with the engine's end of the cable
    disk,  // a file of the host, named by `source`, with the sandbox's ids: a disk for an engine that is a kernel
  };
  std::string target;  // relative to the sandbox's root
  From from = From::filesystem;
  std::string source;
  kernel::MountAttributes attributes;
  std::vector<kernel::FilesystemOption> options;
};

// Capabilities that a process in the sandbox can ever have, there: what installing packages and changing users need.
// Nothing in it reaches the kernel's administration surface, the network's, or other sandboxes'.
extern const uint64_t kCapabilities;
// Held by process 1 alone: it is not in the bounding set, so that nothing it starts can have it, and whoever lacks it
// cannot look into process 1 (guest/agent/secrecy.h). In a user namespace it allows nothing.
extern const uint64_t kBadge;

// A limit of every process in the sandbox (rlimit), soft and hard; lower where the launcher itself may not have so
// much.
struct ResourceLimit {
  int resource;
  const char* name;  // as /proc/<pid>/limits has it
  uint64_t value;
};
std::vector<ResourceLimit> resource_limits(uint32_t open_files);
std::string shown_limit(uint64_t value);  // as /proc/<pid>/limits has it, too

struct Protections {
  uint32_t id_base = 0;
  uint32_t id_count = 0;
  uint64_t capabilities = 0;
  uint64_t badge = kBadge;        // 0: process 1 has none
  std::string filter_hash;        // of the seccomp program; empty: none of ours
  std::string cgroup;             // name
  kernel::CgroupLimits limits;    // of that group
  uint32_t open_files = 0;        // resource_limits()
  std::string network;            // IslandNetwork::expected()
  std::vector<MountRule> mounts;  // the root first

  // Canonical text, one line each: what a manifest holds and what a person can read.
  std::string describe() const;
};

// Kinds of namespaces of which every jail has its own.
inline constexpr const char* kOwnNamespaces[] = {"user", "mnt", "pid", "net", "ipc", "uts", "cgroup"};
// What the stage's tmpfs shows of its own bounds (stage.cc).
inline constexpr const char* kStageBounds = "size=65536k";

// The mounts of every jail on this machine (files of /proc that this kernel does not have are left out).
std::vector<MountRule> standard_mounts();

// Compares what process `pid`, stopped before its exec, has installed with `wanted`. The error names the difference.
// `filter`: the hash of its system-call filter, from somebody who knows; else it is read from the kernel, for which the
// process must not be traced.
Result<void> verify(pid_t pid, const Protections& wanted, const std::string* filter = nullptr);
// The same for every other process that comes to life with it (a restore), each thread: none may be in other
// namespaces, have other capabilities to gain, or another number of filters than process 1 has.
Result<void> verify_companions(pid_t first, const std::vector<pid_t>& pids, const Protections& wanted);
// The same for what is not the process's own: the limits of its group and its network, as the launcher found them.
Result<void> verify_around(const Protections& wanted, const kernel::CgroupLimits& limits, const std::string& network);

// The same for its descriptors: exactly these, by number, as /proc/<pid>/fd names them. Only before the exec: the guest
// opens some of its own.
Result<void> verify_descriptors(pid_t pid, const std::vector<std::string>& wanted);

// A text like /proc/<pid>/cgroup: the first controller that limits a sandbox and does not lead into `group`, or "".
std::string misplaced_controller(std::string_view cgroups, std::string_view group, bool limits_io);

// A mount in the form that describe() uses: "/dev/pts devpts rw,nosuid,noexec / max=512", that is where, what, how,
// which folder of it, and what limits it. `*` for what a shown folder may have of its own.
std::string mount_line(const MountRule& rule);
// The mount table of a process in that form.
Result<std::vector<std::string>> mount_lines(std::string_view mountinfo);

}  // namespace isola::boundary::jail
