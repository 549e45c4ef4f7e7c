// The disk: bytes, inodes and sizes. Each stops by itself (first argument) and removes what it made.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "../probe.h"
#include "families.h"

namespace isola::hostile {
namespace {

// Where the root filesystem is written: /tmp may be memory.
std::string disk_dir() {
  std::string dir = env("ISOLA_WORK");
  if (!dir.empty()) return dir;
  return ::access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/";
}

Outcome fill_bytes(const Args& args) {
  long goal = args.number(0, 512);
  std::string path = disk_dir() + "/isola-filler";
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return contained("open: " + errno_name(errno));
  std::string block(1 << 20, '\0');
  for (size_t i = 0; i < block.size(); ++i)
    block[i] = static_cast<char>(i * 2654435761u >> 13);  // does not compress to nothing
  Outcome outcome = breach(fmt::format("{} MiB on disk", goal));
  for (long n = 0; n < goal; ++n) {
    ::memcpy(block.data(), &n, sizeof n);
    ssize_t written = ::write(fd, block.data(), block.size());
    bool synced = n % 8 != 7 || ::fdatasync(fd) == 0;  // quotas may speak only then
    if (written == static_cast<ssize_t>(block.size()) && synced) continue;
    outcome =
        contained(fmt::format("{} after {} MiB", written < 0 || !synced ? errno_name(errno) : "a short write", n));
    break;
  }
  ::close(fd);
  ::unlink(path.c_str());
  return outcome;
}

Outcome fallocate_bytes(const Args& args) {
  long goal = args.number(0, 512);
  std::string path = disk_dir() + "/isola-fallocate";
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return contained("open: " + errno_name(errno));
  Outcome outcome = judge(fmt::format("fallocate {} MiB", goal), ::fallocate(fd, 0, 0, goal << 20));
  ::close(fd);
  ::unlink(path.c_str());
  return outcome;
}

Outcome fill_inodes(const Args& args) {
  long goal = args.number(0, 300000), end = now_ms() + 45000;
  std::string root = disk_dir() + "/isola-inodes";
  if (::mkdir(root.c_str(), 0700) != 0 && errno != EEXIST) return contained("mkdir: " + errno_name(errno));
  Outcome outcome = breach(fmt::format("{} inodes", goal));
  long made = 0;
  int dir = -1;
  for (; made < goal; ++made) {
    if (made % 1000 == 0) {
      if (dir >= 0) ::close(dir);
      std::string folder = fmt::format("{}/{}", root, made / 1000);
      if (::mkdir(folder.c_str(), 0700) != 0) break;
      dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (dir < 0) break;
      if (now_ms() > end) {
        outcome = untried(fmt::format("only {} inodes in 45 s", made));
        break;
      }
    }
    int fd = ::openat(dir, fmt::format("{}", made).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) break;
    ::close(fd);
  }
  if (made < goal && outcome.kind == Outcome::breach)
    outcome = contained(fmt::format("{} after {} inodes", errno_name(errno), made));
  if (dir >= 0) ::close(dir);
  // The sandbox is thrown away after this; a control removes its own.
  return outcome;
}

// A sparse file costs nothing until a reader copies it: sizes must not be believed.
Outcome sparse_giant(const Args& args) {
  long goal = args.number(0, 1L << 20);  // MiB: 1 TiB
  std::string path = disk_dir() + "/isola-sparse";
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return contained("open: " + errno_name(errno));
  int sized = ::ftruncate(fd, goal << 20);
  int why = errno;
  struct stat status{};
  ::fstat(fd, &status);
  ::close(fd);
  if (sized != 0) {
    ::unlink(path.c_str());
    return contained("ftruncate: " + errno_name(why));
  }
  // Left there for the runner: a read of it by the file calls has to be bounded.
  if (args.number(1, 0)) {
    ::unlink(path.c_str());
    return breach(fmt::format("a file of {} MiB in {} blocks", goal, status.st_blocks));
  }
  return contained(fmt::format("{} is left behind: {} MiB in {} blocks; host-side reads must be bounded", path, goal,
                               status.st_blocks));
}

constexpr Program kDiskBombs[] = {
    {"disk-filler", "bombs", "writes to the disk without end", "ENOSPC or EDQUOT at the disk limit", fill_bytes,
     Expect::killed_by_limit, kNeedsDiskLimit | kNeedsNeighbour | kSlow, "16"},
    {"disk-fallocate", "bombs", "reserves disk space beyond the limit", "ENOSPC, EDQUOT or EOPNOTSUPP", fallocate_bytes,
     Expect::killed_by_limit, kNeedsDiskLimit, "16"},
    {"inode-filler", "bombs", "makes files without end", "ENOSPC or EDQUOT at the disk limit", fill_inodes,
     Expect::killed_by_limit, kNeedsDiskLimit | kNeedsNeighbour | kSlow, "5000"},
    {"sparse-giant", "bombs", "makes a sparse file of 1 TiB", "EFBIG, or host-side reads are bounded", sparse_giant,
     Expect::judged_outside, kNeedsDiskLimit, "1048576 1"},
};

}  // namespace

Family disk_bombs() { return kDiskBombs; }

}  // namespace isola::hostile
