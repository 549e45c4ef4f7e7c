// Limits for a group of processes, on cgroup v1, hybrid and v2 machines alike: what the caller sees is the same, which
// of them a machine has is found once.
//
//   ISOLA_TRY(CgroupTree tree, CgroupTree::detect({.disks = {data_dir}}));
//   if (!tree.missing().empty()) return fail(…);            // cpu, memory and pids must be there
//   ISOLA_TRY(Cgroup group, tree.create(id, {.cpus = 0.5, .memory = 512 << 20, .pids = 256}));
//   ISOLA_CHECK(group.attach(child));
//   …
//   group.release();                                        // it shall outlive us; somebody adopts it by name
//
// Layout: `<hierarchy>/isola/<name>`, one folder per hierarchy on v1 (controllers that share a mount share the folder;
// blkio only once an io limit is asked for), one folder on v2. Nothing above `isola` is written to, but for
// cgroup.subtree_control of the v2 root, which has to hand the controllers down.
//
// No object here keeps a descriptor open: a launcher holds thousands of groups and may keep few fds.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "kernel/cgroup_layout.h"

namespace isola::kernel {

// 0 = no limit.
struct CgroupLimits {
  double cpus = 0;                        // cores' worth of time; at least 0.01
  uint64_t memory = 0;                    // bytes of memory and swap together
  uint32_t pids = 0;                      // threads count too
  uint64_t io_bytes_per_second = 0;       // reads and writes each, on each of the tree's disks
  uint32_t io_operations_per_second = 0;  // the same
  bool operator==(const CgroupLimits&) const = default;
  bool wants_io() const { return io_bytes_per_second != 0 || io_operations_per_second != 0; }
};

struct CgroupStats {
  uint64_t cpu_usec = 0;
  uint64_t memory_bytes = 0;
  uint64_t memory_peak_bytes = 0;  // 0 where the kernel does not say (v2 before 5.19)
  uint64_t oom_kills = 0;
  uint64_t cpu_throttled = 0;  // periods in which the group had used up its cpu time
  uint32_t processes = 0;      // threads count too
};

// Open doors into a group, for a process that walks in by itself. Moving another process takes a lock against every
// fork and exit on the machine and waits for an RCU grace period (11 ms were seen on a busy machine); a single thread
// that moves itself takes neither (v1: "0" into `tasks`), and neither does one that is born inside (v2: clone3).
struct CgroupDoors {
  std::vector<Fd> files;  // v1: one per hierarchy
  Fd folder;              // v2: for CLONE_INTO_CGROUP
  // v1: puts the calling thread, the only one of its process, into the group. v2: nothing to do.
  Result<void> enter() const;
};

// One group. Owns it: unless released, the destructor kills what is inside and removes the folders. Move-only.
class Cgroup {
 public:
  Cgroup() = default;
  Cgroup(Cgroup&&) noexcept = default;
  Cgroup& operator=(Cgroup&& other) noexcept;
  ~Cgroup();

  const std::string& name() const { return name_; }
  bool owned() const { return layout_ != nullptr; }
  void release() { layout_.reset(); }

  // New limits for a living group. A limit below what is in use now is refused (exhausted); after an error some of
  // them may be new already.
  Result<void> set(const CgroupLimits& limits);
  Result<void> set_cpus(double cpus);               // that one alone
  Result<void> set_io(const CgroupLimits& limits);  // those of io alone
  // The limits as the kernel has them (memory rounded to pages): what a manifest is compared with.
  Result<CgroupLimits> limits() const;
  // Moves a whole process (pid as this process sees it; 0 = itself).
  Result<void> attach(pid_t pid) const;
  Result<CgroupDoors> doors() const;
  Result<CgroupStats> stats() const;
  // What of its memory is copies of files, which the kernel takes back when somebody wants it. Costs more than stats().
  Result<uint64_t> page_cache() const;
  Result<std::vector<pid_t>> processes() const;
  // v1: what lies in its sockets, beside its memory. v2: 0, it is part of it.
  Result<uint64_t> socket_memory() const;

  // Freezing in steps, for whoever must not wait: begin, then ask until it is so. On v2 somebody can be told when to
  // ask (freeze_events(), to be opened before: POLLPRI at every change); v1 tells nobody, and is pushed on by the
  // question.
  Result<void> begin_freeze() const;
  Result<bool> frozen() const;
  Result<Fd> freeze_events() const;  // empty on v1
  // The same for whoever can: returns once every process inside is really stopped; a timeout thaws again.
  Result<void> freeze(std::chrono::milliseconds limit = std::chrono::seconds(5)) const;
  Result<void> thaw() const;
  // SIGKILL for everything in a group that is frozen, and only then a thaw: nothing inside gets to run before it dies.
  Result<void> kill_frozen() const;
  // SIGKILL for everything inside, fork bombs included, and waits until all of it is dead (not reaped: that is up to
  // the parent).
  Result<void> kill_all(std::chrono::milliseconds limit = std::chrono::seconds(5)) const;
  // Gives the memory that is still charged back to the machine, then removes the folders. Fails while processes live.
  Result<void> destroy();

 private:
  friend class CgroupTree;
  Cgroup(std::shared_ptr<const CgroupLayout> layout, std::string name)
      : layout_(std::move(layout)), name_(std::move(name)) {}

  Result<std::vector<std::pair<pid_t, Fd>>> hold(std::vector<pid_t>& inside) const;
  std::string path(const std::string& hierarchy, const char* file) const;
  std::vector<std::string> folders() const;
  Result<void> apply(const CgroupLimits& limits, bool fresh);
  Result<void> apply_memory(uint64_t bytes, bool fresh) const;
  Result<void> apply_cpus(double cpus) const;
  Result<void> apply_io(const CgroupLimits& limits, bool fresh);
  Result<void> read_io(CgroupLimits& out) const;

  std::shared_ptr<const CgroupLayout> layout_;
  std::string name_;
  bool io_ = false;  // v1: has a folder in blkio
};

// Where the controllers are, and the groups below our parent. Cheap to copy.
class CgroupTree {
 public:
  // Reads the machine (or the made-up one in `options`); changes nothing.
  static Result<CgroupTree> detect(const CgroupOptions& options = {});
  explicit CgroupTree(CgroupLayout layout) : layout_(std::make_shared<const CgroupLayout>(std::move(layout))) {}

  CgroupVersion version() const { return layout_->version; }
  // Those of cpu, memory and pids that cannot be used here: a launch must be refused if there are any.
  std::vector<std::string> missing() const { return layout_->missing(); }
  // What io limits can do here, as a sentence for people.
  std::string io_note() const { return layout_->io_note(); }
  const CgroupLayout& layout() const { return *layout_; }

  // Makes the parent folders and hands the controllers down. create() does it by itself when needed; `doctor` calls it
  // to learn whether it would work.
  Result<void> prepare() const;
  Result<Cgroup> create(const std::string& name, const CgroupLimits& limits) const;
  // Takes over a group that exists (from before a restart).
  Result<Cgroup> adopt(const std::string& name) const;
  bool has(const std::string& name) const;  // any part of it, whoever's it is
  // The same without a look at the folders, for whoever knows that it is there (what follows fails if it is not): a
  // look takes six system calls on v1. `with_io`: it was made with a limit of io.
  Cgroup known(const std::string& name, bool with_io) const;
  std::vector<std::string> list() const;
  Result<uint64_t> socket_memory() const;  // of all groups together; see Cgroup
  // Kills what is inside and removes it; a group that does not exist is fine.
  Result<void> remove(const std::string& name) const;

 private:
  std::shared_ptr<const CgroupLayout> layout_;
};

}  // namespace isola::kernel
