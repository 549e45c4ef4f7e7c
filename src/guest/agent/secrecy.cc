#include "guest/agent/secrecy.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace isola::guest {

Result<void> Secrecy::begin() {
  if (::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0) return sys_error("cannot close the guest's memory");
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (::syscall(SYS_capget, &header, data) < 0) return sys_error("cannot read the guest's capabilities");
  for (int cap = 0; cap < 64; ++cap) {
    bool held = data[cap / 32].permitted >> (cap % 32) & 1;
    if (held && ::prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 0) badge_ = true;
  }
  data[0].inheritable = data[1].inheritable = 0;
  if (::syscall(SYS_capset, &header, data) < 0) return sys_error("cannot set the guest's capabilities");
  return {};
}

void Secrecy::allow_checkpoint() {
  if (badge_ && !allowed_) allowed_ = ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0;
}

void Secrecy::forbid_checkpoint() {
  if (allowed_) allowed_ = ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0;
}

}  // namespace isola::guest
