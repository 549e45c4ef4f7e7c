// A living jail made into files, and a jail made from them: what criu does, in a helper process per operation, with the
// launcher deciding at the points where it matters (docs/design-notes/checkpoint.md).
#pragma once

#include <memory>
#include <string>

#include "boundary/boundary.h"
#include "boundary/jail/protections.h"
#include "kernel/cgroup.h"
#include "kernel/helper.h"

namespace isola::boundary::jail {

struct Criu {
  std::string program;  // empty: none on this machine
  // A library for it (preload/), without which nothing is saved: the owner of what is restored would be another one,
  // and that is refused. Empty: it is not beside this program.
  std::string preload;
  static constexpr const char* kPreload = "criu-preload.so";
  bool complete() const { return !program.empty() && !preload.empty(); }

  // The one that ISOLA_CRIU names, or the machine's: in Isola's cache of tools, else in the usual folders.
  static Criu find();
};

Result<MemoryHost> memory_host(const Criu& criu);

// `mounts`: of every jail; `pid`: process 1.
Result<std::unique_ptr<Checkpointing>> begin_checkpoint(const Criu& criu, const std::vector<MountRule>& mounts,
                                                        pid_t pid, CheckpointSpec spec);

// What a helper that makes a checkpoint says when everything stands still, and wants an answer to. Such a helper is
// looked after in one way, whatever it is that saves the memory.
inline constexpr char kAtRest = 'R';
std::unique_ptr<Checkpointing> watch_checkpoint(kernel::Helper helper);

// What a memory image of this machine is made for, but for who made it.
Result<MemoryHost> memory_of_this_machine();

struct RestoreParts {
  Criu criu;
  LaunchSpec spec;
  Protections wanted;
  const kernel::CgroupTree& cgroups;
  const IslandNetwork& network;
};
Result<std::unique_ptr<Launching>> begin_restore(RestoreParts parts);

// The lines of criu's log that say "Error", for a message; empty if there are none.
std::string reasons_of(const std::string& log);

// Whether criu's log lacks what went wrong: the disk had no room for it.
bool lost_words(const std::string& log);

}  // namespace isola::boundary::jail
