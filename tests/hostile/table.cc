#include "program.h"
#include "programs/families.h"

namespace isola::hostile {

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

}  // namespace isola::hostile
