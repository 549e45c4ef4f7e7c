#include "topics.h"

namespace isola::behaviour {

std::span<const Topic> topics() {
  static const Topic table[] = {
      {"files", file_checks()},           {"folders", folder_checks()},
      {"pipes", pipe_checks()},           {"signals", signal_checks()},
      {"processes", process_checks()},    {"threads and futexes", thread_checks()},
      {"memory", memory_checks()},        {"TCP", tcp_checks()},
      {"UDP and others", udp_checks()},   {"unix sockets", unix_socket_checks()},
      {"epoll and poll", epoll_checks()}, {"descriptors", descriptor_checks()},
      {"inotify", inotify_checks()},      {"terminals", pty_checks()},
      {"/proc and /dev", proc_checks()},  {"time", time_checks()},
      {"users", identity_checks()},       {"attributes", xattr_checks()},
      {"locks", lock_checks()},           {"copying in the kernel", transfer_checks()},
      {"shared objects", ipc_checks()},   {"kernel features", kernel_checks()},
  };
  return table;
}

}  // namespace isola::behaviour
