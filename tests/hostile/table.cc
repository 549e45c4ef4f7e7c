#include <algorithm>

#include "program.h"
#include "programs/families.h"

namespace isola::hostile {

namespace {

// What a jail refuses and gVisor's own kernel allows, with effect inside it alone; and what only harms the sandbox that
// does it. docs/threat-model.md speaks of each.
constexpr std::string_view kAllowedInsideGvisor[] = {
    // Devices, switches, limits and logs are its own kernel's.
    "char-devices", "mknod-any", "visible-devices", "core-limit", "sysctl-net", "oom-score", "kernel-log",
    "socket-netlink", "socket-filters", "nice-below", "keyring-search", "aio", "leak-identity",
    // So are users and namespaces: its root is nobody's outside, and there is no filter of ours in there.
    "capabilities", "who-am-i", "unshare-each", "unshare-user", "clone-user", "clone3-user", "nested-root",
    "unmapped-ids", "no-filter",
    // Its network has a device: one end of the cable.
    "net-wire",
    // Root inside against process 1: it ends or spoils its own sandbox.
    "init-proc-secrets", "init-proc-fd", "link-pipe", "kill-init", "stop-init", "pester-init",
    // Its locks on files are its own memory, which is part of the limit.
    "objects-locks", "objects-locks-open",
    // Tests of the host's side, which other programs judge.
    "byte-drip", "escapes", "closed-output"};

}  // namespace

const std::vector<const Program*>& all_programs() {
  static const std::vector<const Program*> table = [] {
    std::vector<const Program*> all;
    for (Family family :
         {file_programs(),      mount_programs(),  device_programs(), procfs_programs(),   exe_programs(),
          init_programs(),      signal_programs(), socket_programs(), network_programs(),  privilege_programs(),
          namespace_programs(), kernel_programs(), cgroup_programs(), syscall_programs(),  process_bombs(),
          memory_bombs(),       object_bombs(),    disk_bombs(),      name_programs(),     exhaust_programs(),
          ipc_programs(),       flood_programs(),  leak_programs(),   tracking_programs(), packet_evasions(),
          name_evasions()}) {
      for (const Program& program : family) all.push_back(&program);
    }
    return all;
  }();
  return table;
}

const Program* find_program(std::string_view name) {
  for (const Program* program : all_programs()) {
    if (program->name == name) return program;
  }
  return nullptr;
}

std::string_view allowed_inside(std::string_view name) {
  return std::ranges::find(kAllowedInsideGvisor, name) != std::end(kAllowedInsideGvisor) ? "gvisor" : "";
}

}  // namespace isola::hostile
