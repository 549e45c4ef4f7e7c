#include "preload_owner.h"

#include <linux/securebits.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>

namespace isola::preload {

Owner::Owner(bool makes_user_namespace) {
  const char* owner = makes_user_namespace ? std::getenv("ISOLA_CRIU_OWNER") : nullptr;
  if (!owner) return;
  const auto id = static_cast<unsigned>(std::strtoul(owner, nullptr, 10));
  secure_ = ::prctl(PR_GET_SECUREBITS, 0, 0, 0, 0);
  dumpable_ = ::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0);
  user_ = ::geteuid();
  group_ = ::getegid();
  // Capabilities stay. Where nothing changes, the launcher finds it, which looks at the owner before anything runs.
  if (::prctl(PR_SET_SECUREBITS, secure_ | SECBIT_NO_SETUID_FIXUP, 0, 0, 0) != 0) return;
  if (::setresgid(-1, id, -1) != 0) {
    ::prctl(PR_SET_SECUREBITS, secure_, 0, 0, 0);
    return;
  }
  if (::setresuid(-1, id, -1) != 0) std::abort();  // half of it: criu must not go on as nobody in particular
  borrowed_ = true;
}

// Another id makes a process undumpable, and then it may not look at itself in /proc.
Owner::~Owner() {
  if (!borrowed_) return;
  if (::setresuid(-1, user_, -1) != 0 || ::setresgid(-1, group_, -1) != 0) std::abort();
  ::prctl(PR_SET_SECUREBITS, secure_, 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, dumpable_, 0, 0, 0);
}

void Owner::in_child() {
  if (borrowed_) ::prctl(PR_SET_DUMPABLE, dumpable_, 0, 0, 0);
  borrowed_ = false;
}

}  // namespace isola::preload
