// One table per topic (checks/*.cc); table.cc joins them.
#pragma once

#include "check.h"

namespace isola::behaviour {

using Checks = std::span<const Check>;
Checks file_checks();
Checks folder_checks();
Checks pipe_checks();
Checks signal_checks();
Checks process_checks();
Checks thread_checks();
Checks memory_checks();
Checks tcp_checks();
Checks udp_checks();
Checks unix_socket_checks();
Checks epoll_checks();
Checks descriptor_checks();
Checks inotify_checks();
Checks pty_checks();
Checks proc_checks();
Checks time_checks();
Checks identity_checks();
Checks xattr_checks();
Checks lock_checks();
Checks transfer_checks();
Checks ipc_checks();
Checks kernel_checks();

}  // namespace isola::behaviour
