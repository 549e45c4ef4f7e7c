// Processes: birth into namespaces, identity that survives pid reuse, pidfds, fd passing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::kernel {

struct Child {
  pid_t pid = -1;
  Fd pidfd;
};

// clone3 with `flags`; the child runs `body` and exits with what it returns. The caller must be single-threaded.
// `cgroup`: a folder of cgroup v2 that the child is born into; -1: its parent's.
Result<Child> spawn(uint64_t flags, const std::function<int()>& body, int cgroup = -1);

// A process is named by pid *and* the tick at which it started: the pid alone may be somebody else's by now.
struct ProcessName {
  pid_t pid = 0;
  uint64_t start_time = 0;
};
Result<uint64_t> start_time(pid_t pid);
Result<Fd> open_pidfd(pid_t pid);
// The pidfd of that very process, or not_found if it is gone.
Result<Fd> open_pidfd(const ProcessName& name);
Result<void> send_signal(int pidfd, int signal);
// SIGKILL for a process that leads its group, and for what is left of the group if it is gone already.
void kill_group(pid_t leader, int pidfd);
void wait_for(pid_t child);  // until it is gone and reaped

// Writes uid_map and gid_map: ids 0…count-1 inside are base…base+count-1 outside.
Result<void> write_id_maps(pid_t pid, uint32_t base, uint32_t count);
// "user", "mnt", "net", …
Result<Fd> open_namespace(pid_t pid, const std::string& kind);

// One message with file descriptors over a unix socket (SOCK_SEQPACKET). EOF is an empty message without fds.
struct Message {
  std::string bytes;
  std::vector<Fd> fds;
};
Result<void> send_message(int socket, std::string_view bytes, std::span<const int> fds = {});
Result<Message> receive_message(int socket, size_t max = 256 << 10);
Result<std::pair<Fd, Fd>> socket_pair();
Result<std::pair<Fd, Fd>> make_pipe();  // read end, write end; both CLOEXEC

}  // namespace isola::kernel
