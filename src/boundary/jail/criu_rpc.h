// criu as a servant: one `criu swrk` process per operation, told what to do by protobuf messages over a SOCK_SEQPACKET
// pair. The few messages that we need are written by hand (field numbers as in criu's rpc.proto), so that neither
// libcriu nor protobuf is needed.
//
//   ISOLA_CHECK(criu::dump({.program = path, .images = dir.get(), .external = …}, pid, {.on_notify = …}));
//   ISOLA_TRY(pid_t pid, criu::restore({…}, root, {.before_exec = join_cgroup, .on_notify = configure_network}));
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::criu {

// What dump and restore share. Everything that a jail always needs is set by itself: cgroups are not criu's business,
// a fresh network namespace, TCP connections carried over, watched and deleted files kept.
struct Options {
  std::string program;
  std::string preload;  // a library for it (preload_limits.cc); empty: none
  // A folder on a tmpfs, to be criu's /run: there it keeps what it learnt of the kernel, and asks again, for tens of
  // milliseconds each time, where /run is on a disk. Empty: the machine's own.
  std::string run;
  int images = -1;                    // a descriptor of the folder with (or for) the image files
  std::vector<std::string> external;  // mounts that come from outside (external_mounts.h)
  uint32_t ghost_limit = 64 << 20;    // largest deleted-but-open file
  int log_level = 1;                  // into <images>/dump.log or restore.log
  bool lock_network = false;          // TCP connections inside that hold unsent data need it; it costs milliseconds
};

struct Hooks {
  // Its number, as soon as it runs.
  std::function<Result<void>(pid_t criu)> started;
  // In the child, before criu starts there: what the restored processes shall inherit (control groups, their
  // namespace).
  std::function<Result<void>()> before_exec;
  int cgroup = -1;  // a folder of cgroup v2 that criu is born into
  // criu has reached a point and waits: "post-dump" (everything stopped: the moment to copy files), "setup-namespaces"
  // (process 1 exists, nothing of it runs: the moment to configure its network), … An error ends the operation.
  std::function<Result<void>(const std::string& point, pid_t pid)> on_notify;
  // What goes on beside criu: when this descriptor has something to read, `on_word` is called, once. Its error ends the
  // operation, and it is for `on_word` to end criu, which may never come to a point where it asks.
  int beside = -1;
  std::function<Result<void>()> on_word;
};

// Both fail with Code::unavailable when criu itself died on the way.

// The processes end with the dump, unless `leave_running`.
Result<void> dump(const Options& options, pid_t pid, bool leave_running, const Hooks& hooks);
// Process 1 of the restored tree: a child of the caller.
Result<pid_t> restore(const Options& options, const std::string& root, const Hooks& hooks);

}  // namespace isola::criu
