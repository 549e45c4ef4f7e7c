// The seam between "a sandbox" and what stands under it. A boundary launches cells; everything above is the same for
// the jail, gVisor, user-mode Linux and a microVM.
//
// The launcher is single-threaded and has many launches under way at once, so a launch is a thing to be polled, not a
// call that blocks:
//
//   ISOLA_TRY(auto launching, boundary.begin(std::move(spec)));
//   // whenever launching->fd() is readable:
//   ISOLA_TRY(auto cell, launching->advance());   // null: not yet
//
// Dropping a Launching that did not finish undoes all of it that is not the caller's.
//
// A boundary may have an engine of its own (gVisor's runsc, a kernel as a program): then what runs on the host is the
// engine, and the guest runs inside it.
//
// A launch with a memory image restores what a checkpoint saved instead of starting a guest: everything else (range of
// ids, root, control group, network, the comparison of what is installed with what should be) is the same.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "boundary/latency.h"
#include "boundary/network.h"
#include "boundary/state.h"
#include "kernel/cgroup.h"
#include "kernel/process.h"

namespace isola::boundary {

// What a sandbox has unless told otherwise: 2 processors and 512 MiB, or as much of that as the machine can give.
double usual_cpus();
uint64_t usual_memory();

struct Limits {
  double cpus = usual_cpus();
  uint64_t memory = usual_memory();
  uint32_t pids = 512;
  uint64_t disk = 2ull << 30;
  uint32_t open_files = 16384;
  uint64_t io_bytes_per_second = 0;        // 0: no limit
  std::chrono::milliseconds wall_time{0};  // 0: no limit
  bool operator==(const Limits&) const = default;
};

// A folder that the caller shows to the sandbox (the host's, or a volume): already a detached mount, so that the
// boundary resolves nobody's path. The ids on it are seen through the sandbox's map.
struct ShownFolder {
  Fd tree;
  std::string target;  // absolute path inside
  bool read_only = true;
  bool hosts = false;  // not a volume: sockets and pipes in it belong to programs of the host
  bool mapped = true;  // else its ids are the sandbox's already: a filesystem whose server knows no other way
};
inline constexpr size_t kMostShown = 8;

// The memory of a sandbox: what its processes were when it was checkpointed.
struct MemoryImage {
  std::string folder;   // its files
  std::string scratch;  // a folder that the launch makes for itself on the same filesystem; the caller removes it
  // Are the files whole? Asked in a process of its own while the restore is under way; an error ends the launch before
  // the first instruction.
  std::function<Result<void>()> check;
};

// Which program makes the boundary, so that a caller can be told.
struct Engine {
  std::string name;          // "linux", "runsc"
  std::string version;       // as it says itself
  bool accelerated = false;  // by the processor's virtualisation
  bool operator==(const Engine&) const = default;
};

// What a launch needs; the layer, the cgroup and the id range belong to the caller, who made them and frees them.
struct LaunchSpec {
  std::string id;
  uint32_t id_base = 0;             // first host id of the sandbox's range
  std::vector<std::string> lowers;  // folders below, the uppermost first; the last is where the image's blob is mounted
  std::string blob;                 // the image's file: a boundary with a kernel of its own takes it as a disk
  std::string layer;                // folder with upper/ and work/
  // Its name; limited but for the processor time, which is set before the guest's first instruction.
  std::string cgroup;
  Limits limits;
  std::vector<ShownFolder> shown;
  std::optional<MemoryImage> memory;  // none: a guest of its own
};

// What an image of a sandbox is made for: who else could restore it.
struct MemoryHost {
  std::string checkpointer;  // "criu 4.2.1"
  std::string kernel;        // release
  std::string cpu;           // flags, sorted, with blanks between
  std::string guest;         // hash of process 1's program, which is mapped from outside
  bool operator==(const MemoryHost&) const = default;
};

struct CheckpointSpec {
  bool memory = true;                        // else only `at_rest` is called: the caller sees to it that nothing moves
  std::string folder;                        // empty, for the files
  uint64_t memory_limit = 0;                 // of the sandbox: no engine has more to save than fits into it
  bool keep_running = false;                 // else the sandbox ends when it is done
  uint64_t largest_deleted_file = 64 << 20;  // that is open and kept
  // Called in the helper process when the memory begins to be saved: the moment to start what can go on beside that. It
  // may start threads: nothing is forked there before `at_rest`, which ends them. Not every boundary calls it.
  std::function<void()> begun;
  // Called in the helper process, when the memory is saved and every process still stands still: the moment for the
  // files of the sandbox and for the manifest. What it returns is Checkpointing::result(). After an error the sandbox
  // goes on as if nothing had been.
  std::function<Result<std::string>()> at_rest;
  std::vector<int> keep;  // descriptors that it needs
};

// Polled like a Launching. Dropping it lets the helper go on: a checkpoint is never cut short, since that could take
// the sandbox with it.
class Checkpointing {
 public:
  virtual ~Checkpointing() = default;
  virtual int fd() const = 0;
  // True: done. An error with Code::unavailable: the checkpoint was killed, and the sandbox cannot be trusted to be
  // whole; any other: it failed, and the sandbox goes on.
  virtual Result<bool> advance() = 0;
  virtual const std::string& result() const = 0;
  virtual const Latency& latency() const = 0;
  virtual pid_t pid() const = 0;
};

// Both directions of a link to the guest; these are the host's ends. Whoever is the cell's first process on the host
// (the guest, or the relay of an engine) holds both ends of both pipes, so that nothing hangs up when a launcher dies.
struct Link {
  Fd to_guest;
  Fd from_guest;
};

// What a restarted launcher needs to find a cell again.
struct CellName {
  BoundaryKind kind = BoundaryKind::jail;
  kernel::ProcessName process;  // the first on the host; pid 0: none yet
  std::string handle;           // the boundary's own affair; a word, or empty. The journal keeps it as it is
};

class Cell {
 public:
  virtual ~Cell() = default;
  virtual CellName name() const = 0;
  BoundaryKind kind() const { return name().kind; }
  // Readable (a pidfd) when the cell has ended.
  virtual int exit_fd() const = 0;
  // A link, in two steps, since the guest may need a moment: the first link is the one made at launch, every later one
  // starts a new generation and cuts the old. prepare_link() gives -1 when take_link() can be called at once, or a
  // descriptor that hangs up (POLLHUP) when it can.
  virtual Result<int> prepare_link() = 0;
  virtual Result<Link> take_link() = 0;
  // What the gate answers on. The cell keeps them; whoever needs them longer copies.
  virtual Result<const IslandSockets*> sockets() = 0;
  // All of its processes end, not only the first.
  virtual Result<void> kill() = 0;
  // Is its link silent, so that a checkpoint would lose nothing of it?
  virtual Result<bool> quiesced() { return fail(Code::unsupported, "this boundary has no checkpoints"); }
  // Readable when whoever is still its parent has ended, before which nobody of ours can wait for it; -1: it is ours.
  virtual int parent_fd() const { return -1; }
  // After exit_fd() became readable, and parent_fd() if there is one: how process 1 ended (waitpid status), if that can
  // be known.
  virtual std::optional<int> exit_status() = 0;
};

class Launching {
 public:
  virtual ~Launching() = default;
  virtual int fd() const = 0;
  // Its process has pid 0 while there is none that could be left to itself. The caller writes it down and then says
  // proceed(), before which nothing of the guest runs.
  virtual CellName name() const = 0;
  virtual Result<void> proceed() { return {}; }
  virtual Result<std::unique_ptr<Cell>> advance() = 0;
  virtual const Latency& latency() const = 0;
  // Descriptors that were needed on the way and take long to close: somebody who has time may do it.
  virtual std::vector<Fd> take_leftovers() { return {}; }
};

class Boundary {
 public:
  virtual ~Boundary() = default;
  virtual BoundaryKind kind() const = 0;
  virtual Engine engine() const = 0;
  // What every cell of it has installed, as text, before what a launch adds.
  virtual std::string describe_protections() const { return ""; }
  virtual Result<std::unique_ptr<Launching>> begin(LaunchSpec spec) = 0;
  // What memory images are made by and for here; an error says why there are none.
  virtual Result<MemoryHost> memory_host() { return fail(Code::unsupported, "this boundary has no memory images"); }
  // The cell's link is quiesced. It must live until the checkpoint is over.
  virtual Result<std::unique_ptr<Checkpointing>> checkpoint(Cell&, CheckpointSpec) {
    return fail(Code::unsupported, "this boundary has no checkpoints");
  }
  // New limits of a parked cell, as they were found installed, against what they should be.
  virtual Result<void> verify_limits(const Limits& wanted, const kernel::CgroupLimits& installed) const = 0;
  // Memory, processes and disk of a cell are what they were at its launch: a parked one is only for whoever wants just
  // those.
  virtual bool has_fixed_limits() const { return false; }
  // A living cell that an earlier launcher made, or not_found.
  virtual Result<std::unique_ptr<Cell>> adopt(const CellName& name) = 0;
};

}  // namespace isola::boundary
