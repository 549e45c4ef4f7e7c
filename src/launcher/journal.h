// DIR/run/<id>: what exists, so that whoever starts after a kill -9 knows what to adopt and what to clear away. An
// entry is written before the first kernel object of a sandbox is made and removed after the last one is gone.
//
// It need not survive a crash of the host (nothing that it names does), so it is not synced; it names the boot it
// belongs to instead.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "boundary/state.h"
#include "kernel/process.h"
#include "launcher/name_files.h"

namespace isola::launcher {

struct JournalEntry {
  std::string id;
  uint32_t id_base = 0;
  std::string digest;
  std::string layer;                // its writable one; empty: the one with the sandbox's name
  std::vector<std::string> lowers;  // layers below it, the uppermost first; the image's blob is below them
  std::string image;                // that it was made of; empty: a template
  bool shown = false;               // folders of the host are shown to it
  struct Volume {
    std::string id, target;  // neither has a blank, a comma or a colon in it
    bool is_bucket() const { return id == "bucket"; }
  };
  std::vector<Volume> volumes;
  bool has_buckets() const { return std::ranges::any_of(volumes, &Volume::is_bucket); }
  BoundaryKind kind = BoundaryKind::jail;
  kernel::ProcessName process;  // pid 0: not born yet
  std::string handle;           // the boundary's own affair (boundary::CellName)
  Birth birth = Birth::cold;
  bool parked = false;
  bool ephemeral = false;
  bool frozen = false;     // because somebody wanted it to be
  bool roots_own = false;  // asked for by root itself, not by the user that is admitted beside it
  int64_t created = 0;
  int64_t life = 0;      // as the launch said
  int64_t deadline = 0;  // milliseconds since boot; 0: none
  std::string boot;      // boot id of the kernel; filled in by the journal
};

// So many layers fit into an entry.
inline constexpr size_t kMostLowers = 100;

class Journal {
 public:
  static Result<Journal> open(const std::string& folder);

  Result<void> write(const JournalEntry& entry);
  void erase(const std::string& id);
  // Everything there. Unreadable entries come back with just their id: they are to be cleared away.
  Result<std::vector<JournalEntry>> read_all() const;
  const std::string& boot() const { return boot_; }

 private:
  NameFiles files_;
  std::string boot_;
};

}  // namespace isola::launcher
