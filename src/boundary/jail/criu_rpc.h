// criu as a servant: one `criu swrk` process per operation, told what to do by protobuf messages over a SOCK_SEQPACKET
// pair. The few messages that we need are written by hand (field numbers as in criu's rpc.proto), so that neither
// libcriu nor protobuf is needed.
//
//   ISOLA_TRY(auto servant, criu::Servant::start({.program = path}, {.before_exec = join_cgroup}));
//   … what criu will need is made while it starts …
//   ISOLA_TRY(pid_t pid, servant.restore({.images = dir.get(), .external = …}, root, {.on_notify =
//   configure_network}));
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::criu {

struct Program {
  std::string path;
  std::string preload;  // a library for it (preload/): it sees to the owner of what is restored
};

// What dump and restore share. Everything that a jail always needs is set by itself: cgroups are not criu's business,
// a fresh network namespace, TCP connections carried over, watched and deleted files kept.
struct Options {
  int images = -1;                    // a descriptor of the folder with (or for) the image files
  std::vector<std::string> external;  // mounts that come from outside (external_mounts.h)
  uint32_t ghost_limit = 64 << 20;    // largest deleted-but-open file
  int log_level = 1;                  // into <images>/dump.log or restore.log
};

struct Birth {
  // In the child, before criu starts there: what the restored processes shall inherit (control groups, their
  // namespace).
  std::function<Result<void>()> before_exec;
  int cgroup = -1;     // a folder of cgroup v2 that criu is born into
  uint32_t owner = 0;  // of the user namespace that it makes; 0: root
};

struct Hooks {
  // criu has reached a point and waits: "post-dump" (everything stopped: the moment to copy files), "setup-namespaces"
  // (process 1 exists, nothing of it runs: the moment to configure its network), … An error ends the operation.
  std::function<Result<void>(const std::string& point, pid_t pid)> on_notify;
  // What goes on beside criu: when this descriptor has something to read, `on_word` is called, once. Its error ends the
  // operation, and it is for `on_word` to end criu, which may never come to a point where it asks.
  int beside = -1;
  std::function<Result<void>()> on_word;
};

// A folder on a tmpfs, to be criu's /run: there it keeps what it learnt of the kernel, and asks again, for tens of
// milliseconds each time, where /run is on a disk. In the caller's mount namespace, which becomes its own.
Result<void> enter_criu_world(const std::string& run);

// One criu, for one operation; waited for when it goes. It is never killed: a criu that dies in the middle of a dump
// can take the sandbox with it. It sees the caller's mounts, also those that the caller makes after it was started.
class Servant {
 public:
  static Result<Servant> start(const Program& program, const Birth& birth);
  Servant(Servant&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), pidfd_(std::move(other.pidfd_)), socket_(std::move(other.socket_)) {}
  Servant& operator=(Servant&&) = delete;
  ~Servant();
  pid_t pid() const { return pid_; }

  // Both fail with Code::unavailable when criu itself died on the way.

  // The processes end with the dump, unless `leave_running`.
  Result<void> dump(const Options& options, pid_t pid, bool leave_running, const Hooks& hooks);
  // Process 1 of the restored tree: a child of the caller.
  Result<pid_t> restore(const Options& options, const std::string& root, const Hooks& hooks);

 private:
  Servant(pid_t pid, Fd pidfd, Fd socket) : pid_(pid), pidfd_(std::move(pidfd)), socket_(std::move(socket)) {}
  enum class Word { criu, beside, gone };
  Word wait_for_word(int beside) const;
  Result<pid_t> serve(const std::string& request, const Hooks& hooks);

  pid_t pid_;
  Fd pidfd_, socket_;
};

}  // namespace isola::criu
