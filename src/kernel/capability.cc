#include "kernel/capability.h"

#include <linux/capability.h>
#include <linux/securebits.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernel/fault.h"

namespace isola::kernel {

Result<void> limit_bounding_set(uint64_t keep) {
  if (int e = fault::at("capbset_drop")) return sys_error("cannot drop capabilities", e);
  for (int cap = 0; cap < 64; ++cap) {
    if (keep & capability(cap)) continue;
    if (::prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) == 0) continue;
    if (errno == EINVAL) return {};  // past the kernel's last capability
    return sys_error("cannot drop a capability from the bounding set");
  }
  return {};
}

Result<void> set_capabilities(uint64_t permitted, uint64_t effective, uint64_t inheritable) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  for (int half = 0; half < 2; ++half) {
    data[half].permitted = static_cast<uint32_t>(permitted >> (32 * half));
    data[half].effective = static_cast<uint32_t>(effective >> (32 * half));
    data[half].inheritable = static_cast<uint32_t>(inheritable >> (32 * half));
  }
  if (int e = fault::at("capset")) return sys_error("cannot set the capabilities", e);
  if (::syscall(SYS_capset, &header, data) < 0) return sys_error("cannot set the capabilities");
  return {};
}

namespace {

// Takes from the effective set what is in `take`, adds what is in `add`; gives what was there before.
Result<uint64_t> change_effective(uint64_t take, uint64_t add) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct data[2]{};
  if (int e = fault::at("capget")) return sys_error("cannot read the capabilities", e);
  if (::syscall(SYS_capget, &header, data) < 0) return sys_error("cannot read the capabilities");
  uint64_t before = data[0].effective | (uint64_t{data[1].effective} << 32);
  uint64_t after = (before & ~take) | add;
  data[0].effective = static_cast<uint32_t>(after);
  data[1].effective = static_cast<uint32_t>(after >> 32);
  if (::syscall(SYS_capset, &header, data) < 0) return sys_error("cannot change the capabilities in force");
  return before;
}

}  // namespace

Result<Without> Without::begin(int number) {
  ISOLA_TRY(uint64_t before, change_effective(capability(number), 0));
  return Without(before & capability(number));
}

Without::~Without() {
  if (mask_) (void)change_effective(0, mask_);  // the permitted set still has it
}

Result<void> keep_capabilities_across_setuid() {
  if (::prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) < 0)
    return sys_error("cannot set the secure bits (is this process root?)");
  return {};
}

}  // namespace isola::kernel
