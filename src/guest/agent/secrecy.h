// What keeps the memory and the descriptors of process 1 (so: both ends of the link) from everybody inside the sandbox,
// its root included.
//
// Two things do. The guest is not dumpable: the kernel then wants CAP_SYS_PTRACE, which nobody inside has. And it holds
// a *badge*, one capability that its bounding set lacks: the kernel lets nobody look into a process that has a
// capability which the looker has not, and what is not in the bounding set cannot be had by any exec. A checkpoint
// needs a dumpable process (criu checks the namespaces from inside the sandbox's user namespace), so the first of the
// two is lifted between the quiescing of the link and its next generation; the second one stays.
#pragma once

#include "base/error.h"

namespace isola::guest {

class Secrecy {
 public:
  // Before the first child: no child may inherit the badge.
  Result<void> begin();
  // The link is silent and a checkpoint may come. Without a badge (a guest outside a jail) nothing changes.
  void allow_checkpoint();
  void forbid_checkpoint();

 private:
  bool badge_ = false;
  bool allowed_ = false;
};

}  // namespace isola::guest
