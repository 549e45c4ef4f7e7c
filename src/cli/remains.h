// What is left of a sandbox after it was destroyed: nothing, or its name in this list.
//
//   auto processes = processes_inside(pid_of_process_1);    // before
//   ISOLA_CHECK(launcher.kill(id));
//   std::string left = remains({.data_dir = dir, .id = id, .launcher = pid, .processes = processes});
#pragma once

#include <string>
#include <vector>

#include "kernel/process.h"

namespace isola::cli {

// Everything in the pid namespace of that process, as the host sees it.
std::vector<kernel::ProcessName> processes_inside(pid_t init);

struct Destroyed {
  std::string data_dir, id;
  pid_t launcher = 0;  // layers and mounts are looked for where it sees them
  std::vector<kernel::ProcessName> processes;
};
// One thing that is left, or empty.
std::string remains(const Destroyed& sandbox);

}  // namespace isola::cli
