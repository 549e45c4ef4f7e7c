// gVisor's program, as it is found on this machine.
//
//   auto runsc = Runsc::find();
//   if (!runsc) say(runsc.error().message);      // what is missing
//
// ISOLA_RUNSC names another one than those of the usual places; "none" is no runsc at all.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace isola::boundary::gvisor {

struct Runsc {
  std::string program;   // without symbolic links
  std::string version;   // "0.0~20240729.0"
  std::string platform;  // how it takes over the guest's system calls: "systrap", or "ptrace" for an older one
  bool has_directfs = false, has_overlay2 = false;
  bool cuts_connections = false;  // it closes those to the outside before a checkpoint, which else fails

  static Result<Runsc> find();
  // Everything before the command: where its state is, and what it may use of the host.
  std::vector<std::string> flags(const std::string& state_folder) const;
  // Can it keep the memory of a sandbox, without harm to one whose memory cannot be kept? The error says why not.
  Result<void> keeps_memory() const;
  // It works, but newer ones mend much; empty: recent enough.
  std::string concern() const;
};

// From what `runsc --version` and `runsc flags` print.
Result<Runsc> parse_runsc(const std::string& version_text, const std::string& flags_text);

}  // namespace isola::boundary::gvisor
