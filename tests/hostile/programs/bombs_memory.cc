// Memory by every kind of page. Each stops by itself at a size in MiB (first argument); reaching it is the breach.
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

constexpr size_t kMiB = 1 << 20;
constexpr long kDefaultMiB = 512;

Outcome reached(long mib) { return breach(fmt::format("{} MiB", mib)); }
Outcome stopped(std::string_view what, long mib) {
  return contained(fmt::format("{}: {} after {} MiB", what, errno_name(errno), mib));
}

Outcome map_and_touch(long goal, int flags, bool lock) {
  for (long n = 0; n < goal; n += 2) {
    void* memory = ::mmap(nullptr, 2 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (memory == MAP_FAILED) return stopped("mmap", n);
    if (lock && ::mlock(memory, 2 * kMiB) != 0) return stopped("mlock", n);
    ::memset(memory, 1, 2 * kMiB);
  }
  return reached(goal);
}

Outcome anonymous(const Args& args) { return map_and_touch(args.number(0, kDefaultMiB), 0, false); }
Outcome locked(const Args& args) { return map_and_touch(args.number(0, kDefaultMiB), 0, true); }
// Pages of 2 MiB that the machine set aside: no limit counts them, so that a single one is a breach. Where there are
// none the mapping fails: containment, by the machine. Who takes the flag for a hint gives ordinary memory.
bool is_huge(void* memory) {
  if (memory == MAP_FAILED) return false;
  auto maps = slurp("/proc/self/smaps");
  return maps && maps->find("KernelPageSize:     2048 kB") != std::string::npos;
}

Outcome huge(const Args& args) {
  constexpr int kReadWrite = PROT_READ | PROT_WRITE;
  int fd = ::memfd_create("isola-huge", MFD_CLOEXEC | MFD_HUGETLB);
  if (fd >= 0 && ::ftruncate(fd, 2 * kMiB) == 0 && is_huge(::mmap(nullptr, 2 * kMiB, kReadWrite, MAP_SHARED, fd, 0)))
    return breach("a huge page by memfd_create");
  int id = ::shmget(IPC_PRIVATE, 2 * kMiB, IPC_CREAT | SHM_HUGETLB | 0600);
  void* shared = id < 0 ? MAP_FAILED : ::shmat(id, nullptr, 0);
  if (id >= 0) ::shmctl(id, IPC_RMID, nullptr);
  if (is_huge(shared)) return breach("a huge page by shmget");
  if (is_huge(::mmap(nullptr, 2 * kMiB, kReadWrite, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0)))
    return breach("a huge page by mmap");
  return map_and_touch(args.number(0, kDefaultMiB), MAP_HUGETLB, false);
}

Outcome fill_fd(int fd, long goal, const std::string& remove) {
  if (fd < 0) return contained("open: " + errno_name(errno));
  std::string block(kMiB, 'x');
  Outcome outcome = reached(goal);
  for (long n = 0; n < goal; ++n) {
    ssize_t written = ::write(fd, block.data(), block.size());
    if (written == static_cast<ssize_t>(block.size())) continue;
    outcome = written < 0 ? stopped("write", n) : contained(fmt::format("a short write after {} MiB", n));
    break;
  }
  ::close(fd);
  if (!remove.empty()) ::unlink(remove.c_str());
  return outcome;
}

Outcome fill_file(const std::string& path, long goal) {
  return fill_fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), goal, path);
}
Outcome dev_shm(const Args& args) { return fill_file("/dev/shm/isola-bomb", args.number(0, kDefaultMiB)); }
Outcome tmp(const Args& args) { return fill_file("/tmp/isola-bomb", args.number(0, kDefaultMiB)); }
Outcome run(const Args& args) { return fill_file("/run/isola-bomb", args.number(0, kDefaultMiB)); }
Outcome memfd(const Args& args) {
  return fill_fd(::memfd_create("isola-bomb", MFD_CLOEXEC), args.number(0, kDefaultMiB), "");
}

Outcome sysv_shm(const Args& args) {
  long goal = args.number(0, kDefaultMiB);
  for (long n = 0; n < goal; n += 4) {
    int id = ::shmget(IPC_PRIVATE, 4 * kMiB, IPC_CREAT | 0600);
    if (id < 0) return stopped("shmget", n);
    void* memory = ::shmat(id, nullptr, 0);
    ::shmctl(id, IPC_RMID, nullptr);
    if (memory == reinterpret_cast<void*>(-1)) return stopped("shmat", n);
    ::memset(memory, 1, 4 * kMiB);
  }
  return reached(goal);
}

// Every writable place that is memory, not disk: what a limit on one of them forgets is in another.
Outcome every_tmpfs(const Args& args) {
  long goal = args.number(0, kDefaultMiB);
  Attempts attempts;
  for (const char* dir : {"/dev", "/run", "/run/lock", "/dev/shm", "/tmp", "/var/tmp", "/proc", "/sys",
                          "/sys/fs/cgroup", "/dev/mqueue", "/run/user"}) {
    Outcome one = fill_file(std::string(dir) + "/isola-bomb", goal);
    if (one.kind == Outcome::breach)
      attempts.worked(fmt::format("{} took {}", dir, one.how));
    else
      attempts.refused(dir, one.how);
  }
  return attempts.outcome();
}

#define ISOLA_MEMORY_BOMB(name, tries, run)                                                                          \
  {name, "bombs", tries, "killed, or refused, at the memory limit", run, Expect::killed_by_limit, kNeedsMemoryLimit, \
   "32"}

constexpr Program kMemoryBombs[] = {
    {"memory-anonymous", "bombs", "touches anonymous memory without end", "killed at the memory limit", anonymous,
     Expect::killed_by_limit, kNeedsMemoryLimit | kNeedsNeighbour, "32"},
    ISOLA_MEMORY_BOMB("memory-locked", "locks memory without end", locked),
    {"memory-huge", "bombs", "gets huge pages, which no memory limit counts", "ENOMEM, or killed", huge,
     Expect::killed_by_limit, kNeedsMemoryLimit | kControlMayLack, "32"},
    ISOLA_MEMORY_BOMB("memory-dev-shm", "fills /dev/shm", dev_shm),
    {"memory-tmp", "bombs", "fills /tmp", "ENOSPC at the disk limit, or killed", tmp, Expect::killed_by_limit,
     kNeedsMemoryLimit | kNeedsDiskLimit, "32"},
    ISOLA_MEMORY_BOMB("memory-run", "fills /run", run),
    ISOLA_MEMORY_BOMB("memory-memfd", "fills a memfd", memfd),
    ISOLA_MEMORY_BOMB("memory-sysv", "fills System V shared memory", sysv_shm),
    {"memory-every-tmpfs", "bombs", "fills whatever folder is writable and might be memory",
     "each one ends at its limit", every_tmpfs, Expect::killed_by_limit, kNeedsMemoryLimit | kNeedsDiskLimit, "8"},
};

}  // namespace

Family memory_bombs() { return kMemoryBombs; }

}  // namespace isola::hostile
