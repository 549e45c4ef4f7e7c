// What each operation of the link carries: its arguments, what comes back, and the records inside its data frames.
//
//   op          arguments    reply      data guest→host        data host→guest   end
//   run         Start        Started    Output pieces          stdin             Exit
//   run_with_files  StartWithFiles; otherwise as run
//   start       Start                                                            Started
//   attach      Attach       Started    Output pieces          stdin             Exit
//   run_held, attach_held  as run and attach; a reader that lags holds the process up instead of losing output
//   run_whole   as run_held; the end comes when nobody can write to its output any more, or after a SIGTERM or SIGKILL
//   list        List                    Entry records                            Listed
//   read        Read         Stat       the bytes                                Done
//   write       Write        Done                              the bytes         Done
//   watch       Watch        Done       WatchEvent records                       (only by cancel or an error)
//   dial        Dial         Done       bytes                  bytes             Done
//   all others  see below, answered by end alone
//
// A piece of output is {u8 stream, u64 seq, bytes}. `seq` counts every byte that the process ever wrote, both streams
// together, in the order in which the guest read them: a reader that has seen everything up to seq n attaches again
// with from = n. A piece with stream = gap says that output was dropped: its bytes are a u64, how much was lost.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "guest/archive.h"

namespace isola::guest {

enum class Op : uint8_t {
  none,
  ping,
  quiesce,
  configure,
  run,
  start,
  attach,
  processes,
  signal,
  wait,
  resize,
  stat,
  list,
  read,
  write,
  mkdir,
  rename,
  remove,
  chmod,
  chown,
  symlink,
  readlink,
  xattr_get,
  xattr_set,
  xattr_list,
  xattr_remove,
  watch,
  ports,
  dial,
  metrics,
  go_on,           // after quiesce, on the same link: what was held back comes, and everything is as before (GoOn)
  enter,           // a folder becomes the guest's root for good: no path of a later call leads out of it
  run_with_files,  // as run
  run_held,        // as run, and
  attach_held,     // as attach: the process waits for this reader
  watch_local,     // as watch, but refused where others may change files unseen: on a network, or behind FUSE
  run_whole,       // as run_held, and its end waits for whoever else holds its output
  count_
};

// Whether what comes back are pieces of output.
inline bool gives_output(Op op) {
  return op == Op::run || op == Op::run_with_files || op == Op::attach || op == Op::run_held || op == Op::attach_held ||
         op == Op::run_whole;
}

enum class Stream : uint8_t { none, out, err, pty, gap, count_ };
inline constexpr size_t kPieceHeader = 9;
inline constexpr uint64_t kFromNow = UINT64_MAX;  // Attach::from: nothing of the past

// A guest with a kernel of its own stood still meanwhile, and its clock with it.
struct GoOn {
  int64_t time = 0;  // nanoseconds since 1970, the host's
  template <typename A>
  void fields(A& a) {
    a(time);
  }
};
std::string encoded_go_on();  // with the time as it is now

// ---- processes ----

enum class Stdin : uint8_t { null, pipe, closed, count_ };

struct Start {
  std::vector<std::string> argv;
  std::vector<std::string> env;  // "NAME=value", added to the defaults (PATH HOME USER LOGNAME LANG, SHELL where the
                                 // user has one and, in a jail, OPENSSL_CONF) unless replaced
  bool replace_env = false;
  std::string cwd;   // empty: the user's home, or / where that is missing
  std::string user;  // "" = root, a name, or uid[:gid]
  std::string tag;   // a name of the caller's choice, shown in the list
  Stdin stdin_mode = Stdin::null;
  bool pty = false;
  uint16_t rows = 24, cols = 80;
  uint64_t timeout_ms = 0;  // 0 = none; at that time SIGTERM to the group, after the grace SIGKILL
  uint32_t grace_ms = 2000;
  bool announce = true;  // run: send Started as soon as it runs (false spares a wake-up: the pid is in Exit, too)

  template <typename A>
  void fields(A& a) {
    a(argv, env, replace_env, cwd, user, tag, stdin_mode, pty, rows, cols, timeout_ms, grace_ms, announce);
  }
};

// Files for this command alone, each "NAME=content": NAME is set to where it is (agent/private_files.h).
struct StartWithFiles {
  Start start;
  std::vector<std::string> files;
  template <typename A>
  void fields(A& a) {
    a(start, files);
  }
};

struct Started {
  uint32_t pid = 0;
  uint64_t first = 0;  // the oldest output still kept
  template <typename A>
  void fields(A& a) {
    a(pid, first);
  }
};

struct Attach {
  uint32_t pid = 0;
  uint64_t from = 0;
  template <typename A>
  void fields(A& a) {
    a(pid, from);
  }
};

struct Exit {
  uint32_t pid = 0;
  int32_t code = -1;   // what it returned, or -1
  int32_t signal = 0;  // what killed it, or 0
  bool core = false;
  bool timed_out = false;
  bool oom_hint = false;  // SIGKILL that nobody asked the guest for: most likely the memory limit
  uint64_t seq = 0;       // all output up to the exit
  template <typename A>
  void fields(A& a) {
    a(pid, code, signal, core, timed_out, oom_hint, seq);
  }
};

struct Pid {
  uint32_t pid = 0;
  template <typename A>
  void fields(A& a) {
    a(pid);
  }
};

enum class Target : uint8_t { process, group, session, count_ };  // session = the group and every descendant in it

struct Signal {
  uint32_t pid = 0;
  int32_t signal = 0;
  Target target = Target::process;
  template <typename A>
  void fields(A& a) {
    a(pid, signal, target);
  }
};

struct Resize {
  uint32_t pid = 0;
  uint16_t rows = 24, cols = 80;
  template <typename A>
  void fields(A& a) {
    a(pid, rows, cols);
  }
};

struct ProcessInfo {
  uint32_t pid = 0;
  std::string tag, command, cwd, user;
  bool pty = false, running = false;
  uint64_t first = 0, seq = 0;  // output kept: [first, seq)
  Exit exit;                    // when not running
  template <typename A>
  void fields(A& a) {
    a(pid, tag, command, cwd, user, pty, running, first, seq, exit);
  }
};

struct Processes {
  std::vector<ProcessInfo> list;
  template <typename A>
  void fields(A& a) {
    a(list);
  }
};

// Defaults for every later start, given when a parked sandbox is handed to its owner. An empty id changes nothing.
struct Configure {
  std::string id;
  std::vector<std::string> env;
  template <typename A>
  void fields(A& a) {
    a(id, env);
  }
};

// ---- files: `user` is the acting user (as in Start); its rights, not the guest's, decide ----

enum class FileType : uint8_t { unknown, file, dir, link, fifo, socket, chardev, blockdev, count_ };

struct Stat {
  FileType type = FileType::unknown;
  uint32_t mode = 0, uid = 0, gid = 0;
  uint64_t size = 0, inode = 0, links = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  std::string target;  // of a symbolic link
  template <typename A>
  void fields(A& a) {
    a(type, mode, uid, gid, size, inode, links, mtime_ns, ctime_ns, target);
  }
};

struct StatArgs {
  std::string path, user;
  bool follow = false;
  template <typename A>
  void fields(A& a) {
    a(path, user, follow);
  }
};

struct List {
  std::string path, user;
  uint32_t depth = 1;  // 1 = the folder's own entries; at most kMaxListDepth
  uint64_t limit = 100000;
  template <typename A>
  void fields(A& a) {
    a(path, user, depth, limit);
  }
};
inline constexpr uint32_t kMaxListDepth = 64;

struct Entry {
  std::string path;  // relative to the folder listed
  Stat stat;
  template <typename A>
  void fields(A& a) {
    a(path, stat);
  }
};

struct Listed {
  uint64_t count = 0;
  bool truncated = false;
  template <typename A>
  void fields(A& a) {
    a(count, truncated);
  }
};

struct Read {
  std::string path, user;
  uint64_t offset = 0, length = UINT64_MAX;
  template <typename A>
  void fields(A& a) {
    a(path, user, offset, length);
  }
};

enum class WriteMode : uint8_t { truncate, append, at_offset, create_new, replace, count_ };  // replace = temp + rename

struct Write {
  std::string path, user;
  WriteMode how = WriteMode::truncate;
  uint64_t offset = 0;
  uint32_t mode = 0644;
  bool parents = false;
  std::string owner;  // "" = as created; else uid[:gid] or a name
  bool sync = false;
  template <typename A>
  void fields(A& a) {
    a(path, user, how, offset, mode, parents, owner, sync);
  }
};

struct Done {
  uint64_t bytes = 0;
  template <typename A>
  void fields(A& a) {
    a(bytes);
  }
};

struct Mkdir {
  std::string path, user;
  uint32_t mode = 0755;
  bool parents = true;
  template <typename A>
  void fields(A& a) {
    a(path, user, mode, parents);
  }
};

struct Rename {
  std::string from, to, user;
  bool replace = true;
  template <typename A>
  void fields(A& a) {
    a(from, to, user, replace);
  }
};

struct Remove {
  std::string path, user;
  bool recursive = false;
  template <typename A>
  void fields(A& a) {
    a(path, user, recursive);
  }
};

struct Chmod {
  std::string path, user;
  uint32_t mode = 0;
  template <typename A>
  void fields(A& a) {
    a(path, user, mode);
  }
};

struct Chown {
  std::string path, user, owner;
  bool follow = false;
  template <typename A>
  void fields(A& a) {
    a(path, user, owner, follow);
  }
};

struct Symlink {
  std::string target, path, user;
  template <typename A>
  void fields(A& a) {
    a(target, path, user);
  }
};

struct PathArgs {  // readlink, xattr_list, enter
  std::string path, user;
  template <typename A>
  void fields(A& a) {
    a(path, user);
  }
};

struct Xattr {  // get, set, remove
  std::string path, user, name, value;
  template <typename A>
  void fields(A& a) {
    a(path, user, name, value);
  }
};

struct Text {
  std::string text;
  template <typename A>
  void fields(A& a) {
    a(text);
  }
};

struct Names {
  std::vector<std::string> names;
  template <typename A>
  void fields(A& a) {
    a(names);
  }
};

// ---- watch, ports, metrics ----

struct Watch {
  std::string path, user;
  bool recursive = true;
  template <typename A>
  void fields(A& a) {
    a(path, user, recursive);
  }
};

// overflow: events were lost, look for yourself; limit: a folder could not be watched (too many)
enum class Change : uint8_t {
  none,
  created,
  modified,
  removed,
  moved_from,
  moved_to,
  attributes,
  overflow,
  limit,
  count_
};

struct WatchEvent {
  Change change = Change::none;
  bool is_dir = false;
  uint32_t cookie = 0;  // joins moved_from and moved_to
  std::string path;     // relative to the folder watched
  template <typename A>
  void fields(A& a) {
    a(change, is_dir, cookie, path);
  }
};

struct Port {
  uint16_t port = 0;
  bool v6 = false, loopback = false;
  uint32_t uid = 0;
  template <typename A>
  void fields(A& a) {
    a(port, v6, loopback, uid);
  }
};

struct Ports {
  std::vector<Port> list;
  template <typename A>
  void fields(A& a) {
    a(list);
  }
};

struct Dial {
  uint16_t port = 0;
  template <typename A>
  void fields(A& a) {
    a(port);
  }
};

struct Metrics {
  uint64_t cpu_us = 0;  // of everything inside, living and reaped
  uint64_t memory_bytes = 0, memory_total = 0;
  uint64_t disk_used = 0, disk_total = 0, inodes_used = 0, inodes_total = 0;
  uint32_t processes = 0;
  uint64_t uptime_ms = 0;
  template <typename A>
  void fields(A& a) {
    a(cpu_us, memory_bytes, memory_total, disk_used, disk_total, inodes_used, inodes_total, processes, uptime_ms);
  }
};

}  // namespace isola::guest
