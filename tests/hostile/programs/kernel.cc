// Parts of the kernel that nothing in a sandbox needs and that bugs keep coming from.
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

Outcome keyring_add(const Args&) {
  return judge("add_key", ::syscall(SYS_add_key, "user", "isola-hostile", "x", 1, -2 /* process keyring */));
}

Outcome keyring_search(const Args&) {
  Attempts attempts;
  attempts.add("session keyring", ::syscall(SYS_keyctl, 0 /* GET_KEYRING_ID */, -3, 1));
  attempts.add("user keyring", ::syscall(SYS_keyctl, 0, -4, 1));
  attempts.add("join a session", ::syscall(SYS_keyctl, 1 /* JOIN_SESSION_KEYRING */, nullptr));
  long found = ::syscall(SYS_request_key, "user", "isola-canary", nullptr, 0);
  if (found >= 0 || errno != ENOKEY) attempts.add("request_key", found);
  return attempts.outcome();
}

Outcome bpf(const Args&) {
  Attempts attempts;
  union bpf_attr map{};
  map.map_type = BPF_MAP_TYPE_ARRAY;
  map.key_size = 4;
  map.value_size = 4;
  map.max_entries = 1;
  attempts.add("bpf map", ::syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map));
  return attempts.outcome();
}

Outcome perf(const Args&) {
  perf_event_attr attr{};
  attr.type = PERF_TYPE_SOFTWARE;
  attr.size = sizeof attr;
  attr.config = PERF_COUNT_SW_CPU_CLOCK;
  return judge("perf_event_open", ::syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0));
}

Outcome uffd(const Args&) {
  Attempts attempts;
  attempts.add("userfaultfd", ::syscall(SYS_userfaultfd, O_CLOEXEC));
  attempts.add("userfaultfd user mode", ::syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY));
  attempts.add("/dev/userfaultfd", ::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC));
  return attempts.outcome();
}

Outcome io_uring(const Args&) {
  io_uring_params params{};
  return judge("io_uring_setup", ::syscall(SYS_io_uring_setup, 4, &params));
}

Outcome aio(const Args&) {
  unsigned long context = 0;
  return judge("io_setup", ::syscall(SYS_io_setup, 64, &context));
}

Outcome kcmp(const Args&) { return judge("kcmp", ::syscall(SYS_kcmp, 1, ::getpid(), 1 /* KCMP_VM */, 0, 0)); }

// Old, optional or administrative calls: what a filter that lists what is allowed leaves out by itself.
Outcome rare_calls(const Args&) {
  Attempts attempts;
  struct {
    const char* name;
    long number;
  } calls[] = {{"lookup_dcookie", SYS_lookup_dcookie},
               {"quotactl", SYS_quotactl},
               {"nfsservctl", SYS_nfsservctl},
               {"sysfs", SYS_sysfs},
               {"ustat", SYS_ustat},
               {"_sysctl", SYS__sysctl},
               {"uselib", SYS_uselib},
               {"migrate_pages", SYS_migrate_pages},
               {"move_pages", SYS_move_pages},
               {"quotactl_fd", 443},
               {"memfd_secret", 447},
               {"fsmount", SYS_fsmount},
               {"fspick", SYS_fspick}};
  for (auto [name, number] : calls) {
    // Bad arguments everywhere: a call that is not filtered says so with EFAULT, EINVAL or EBADF.
    long result = ::syscall(number, -1L, -1L, -1L, -1L, -1L, -1L);
    if (result < 0 && errno != ENOSYS && errno != EPERM)
      attempts.worked(fmt::format("{} is not filtered ({})", name, errno_name(errno)));
    else
      attempts.add(name, result);
  }
  return attempts.outcome();
}

Outcome fanotify(const Args&) {
  Attempts attempts;
  attempts.add("fanotify with permission events", ::fanotify_init(FAN_CLASS_CONTENT, O_RDONLY));
  attempts.add("fanotify", ::fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID, O_RDONLY));
  return attempts.outcome();
}

constexpr Program kKernelPrograms[] = {
    {"keyring-add", "kernel", "adds a key to the kernel's keyring", "EPERM or ENOSYS", keyring_add, Expect::contained,
     kControlMayLack},
    {"keyring-search", "kernel", "looks at session and user keyrings", "EPERM or ENOSYS", keyring_search,
     Expect::contained, kControlMayLack},
    {"bpf", "kernel", "makes a bpf map", "EPERM", bpf, Expect::contained, kControlMayLack},
    {"perf", "kernel", "opens a performance counter", "EPERM or EACCES", perf, Expect::contained, kControlMayLack},
    {"userfaultfd", "kernel", "gets a userfaultfd", "EPERM or ENOSYS", uffd, Expect::contained, kControlMayLack},
    {"io-uring", "kernel", "makes an io_uring", "EPERM or ENOSYS", io_uring, Expect::contained, kControlMayLack},
    {"aio", "kernel", "makes a kernel aio ring, of which the whole machine has few", "EPERM, EAGAIN or ENOSYS", aio,
     Expect::contained, kControlMayLack},
    {"kcmp", "kernel", "compares kernel objects of process 1 with its own", "EPERM or ENOSYS", kcmp, Expect::contained,
     kControlMayLack},
    {"rare-calls", "kernel", "makes a dozen rare system calls with bad arguments", "EPERM or ENOSYS for every one",
     rare_calls},
    {"fanotify", "kernel", "listens to the whole filesystem by fanotify", "EPERM or ENOSYS", fanotify,
     Expect::contained, kControlMayLack},
};

}  // namespace

Family kernel_programs() { return kKernelPrograms; }

}  // namespace isola::hostile
