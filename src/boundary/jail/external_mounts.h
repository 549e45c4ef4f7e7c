// Which of a jail's mounts criu must be told about: those that come from the launcher's stage and cannot be made from
// inside (the shared /dev and /sys, the stand-ins for masked files of /proc), and folders that are shown to it.
// Everything else (the root, proc and its read-only parts, devpts, tmpfs) criu makes anew by itself.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "boundary/boundary.h"
#include "boundary/jail/protections.h"

namespace isola::criu {

// For a dump: "this mount is external, remember it by its name".
std::vector<std::string> external_for_dump(const std::vector<boundary::jail::MountRule>& rules);
// criu takes an external mount as it finds it and forgets the attributes that it had at the dump: a restored jail would
// have a writable /dev. So the sources must have them already: this binds each onto itself, with the attributes of its
// rule, in this mount namespace (a private one; the stage is the working folder).
Result<void> prepare_sources(const std::vector<boundary::jail::MountRule>& rules);
// For one restore: the shared /dev, in which the guest's program is readable by nobody inside, through the ids of the
// sandbox that is to come. There its root owns it, and criu (as that root) can open it.
Result<void> prepare_dev(const std::vector<boundary::jail::MountRule>& rules, int userns);
// For one restore: what is shown to the sandbox that is to come, through its ids, at the stage's points for it.
Result<void> prepare_shown(const std::vector<boundary::ShownFolder>& shown, int userns);
// For a restore: "what has that name is here", below the folder where the stage is mounted. Shown folders are in the
// order of their rules.
std::vector<std::string> external_for_restore(const std::vector<boundary::jail::MountRule>& rules,
                                              const std::string& stage);

}  // namespace isola::criu
