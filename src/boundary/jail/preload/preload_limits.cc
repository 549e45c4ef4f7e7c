// A library for criu's LD_PRELOAD: two of the calls that criu makes through syscall().
//
// clone3, with which it makes process 1 in a new user namespace: the owner of that is chosen here (preload_owner.h), on
// every machine. What is restored without this is refused.
//
// prlimit, for machines whose root lacks CAP_SYS_RESOURCE (a container's, often): a dump asks for the resource limits
// of every process, and the kernel tells them only to that capability or to the owner of the sandbox's user namespace,
// which is the sandbox's own id. /proc/<pid>/limits tells them to anybody who may look.
#include <dlfcn.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "preload_owner.h"

namespace {

rlim64_t value_of(const char* text) {
  return std::strncmp(text, "unlimited", 9) == 0 ? RLIM64_INFINITY : std::strtoull(text, nullptr, 10);
}

// "Max open files            1024                 4096                 files": one line per limit, in their order.
int read_limit(pid_t pid, int resource, rlimit64* limit) {
  char path[64], line[256];
  std::snprintf(path, sizeof path, "/proc/%d/limits", pid);
  std::FILE* file = std::fopen(path, "re");
  if (!file) return -1;
  bool found = true;
  for (int i = 0; found && i <= resource + 1; ++i) found = std::fgets(line, sizeof line, file) != nullptr;
  std::fclose(file);
  constexpr size_t kSoft = 26, kHard = kSoft + 21;
  if (!found || std::strlen(line) <= kHard) return errno = EINVAL, -1;
  limit->rlim_cur = value_of(line + kSoft);
  limit->rlim_max = value_of(line + kHard);
  return 0;
}

}  // namespace

// Whatever else it is used for passes through: six arguments are what any system call can have.
extern "C" long syscall(long number, ...) noexcept {
  using Function = long (*)(long, ...);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  // clone3's first argument begins with its flags.
  isola::preload::Owner owner(number == SYS_clone3 && a[0] != 0 &&
                              (*reinterpret_cast<const uint64_t*>(a[0]) & CLONE_NEWUSER) != 0);
  long done = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_clone3 && done == 0) owner.in_child();
  bool asks = number == SYS_prlimit64 && a[0] != 0 && a[2] == 0 && a[3] != 0;
  if (done == 0 || errno != EPERM || !asks) return done;
  return read_limit(static_cast<pid_t>(a[0]), static_cast<int>(a[1]), reinterpret_cast<rlimit64*>(a[3]));
}
