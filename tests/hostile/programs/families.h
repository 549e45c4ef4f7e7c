// Every family of hostile programs: one function per file beside this one.
#pragma once

#include "../program.h"

namespace isola::hostile {

Family file_programs();
Family mount_programs();
Family device_programs();
Family procfs_programs();
Family exe_programs();
Family init_programs();
Family signal_programs();
Family socket_programs();
Family network_programs();
Family privilege_programs();
Family namespace_programs();
Family kernel_programs();
Family cgroup_programs();
Family syscall_programs();
Family process_bombs();
Family memory_bombs();
Family object_bombs();
Family disk_bombs();
Family name_programs();
Family exhaust_programs();
Family ipc_programs();
Family flood_programs();
Family leak_programs();
Family tracking_programs();
Family packet_evasions();
Family name_evasions();

}  // namespace isola::hostile
