#include "boundary/box/disk.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

#include "base/fd.h"

namespace isola::boundary::box {

namespace {

constexpr uint64_t kBlock = 4096;

Result<void> copy_piece(int from, int to, off_t at, off_t end) {
  static char piece[64 << 10];
  while (at < end) {
    ssize_t n = ::pread(from, piece, std::min<size_t>(sizeof piece, static_cast<size_t>(end - at)), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return sys_error("cannot read the empty disk", n < 0 ? errno : EIO);
    for (ssize_t done = 0; done < n;) {
      ssize_t wrote = ::pwrite(to, piece + done, static_cast<size_t>(n - done), at + done);
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0) return sys_error("cannot write the sandbox's disk");
      done += wrote;
    }
    at += n;
  }
  return {};
}

struct Ends {
  Fd from, to;
  off_t length = 0;
};

// What stands in a layer was written by whoever ran on it: a pipe or a device there must keep nobody waiting.
constexpr int kNoWaiting = O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;

Result<Ends> open_ends(const std::string& from, const std::string& path, uint64_t size, int flags) {
  Ends ends;
  ends.from = Fd(::open(from.c_str(), O_RDONLY | kNoWaiting));
  struct stat st{};
  if (!ends.from || ::fstat(ends.from.get(), &st) < 0) return sys_error("cannot open the disk to begin with");
  if (!S_ISREG(st.st_mode)) return fail(Code::corrupt, "the disk to begin with is none");
  if (static_cast<uint64_t>(st.st_size) > size) return fail(Code::invalid, "the sandbox's disk is too small");
  ends.length = st.st_size;
  ends.to = Fd(::open(path.c_str(), O_RDWR | flags | kNoWaiting, 0600));
  if (!ends.to || ::fstat(ends.to.get(), &st) < 0) return sys_error("cannot make the sandbox's disk");
  if (!S_ISREG(st.st_mode)) return fail(Code::corrupt, "the sandbox's disk is none");
  return ends;
}

Result<void> enlarge(int disk, uint64_t size) {
  if (::ftruncate(disk, static_cast<off_t>(size)) < 0) return sys_error("cannot make the sandbox's disk");
  return {};
}

Result<void> fill(const Ends& ends, uint64_t size) {
  for (off_t at = 0; at < ends.length;) {
    off_t data = ::lseek(ends.from.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    off_t hole = data < 0 ? -1 : ::lseek(ends.from.get(), data, SEEK_HOLE);
    if (hole < 0) return sys_error("cannot read the disk to begin with");
    ISOLA_CHECK(copy_piece(ends.from.get(), ends.to.get(), data, hole));
    at = hole;
  }
  return enlarge(ends.to.get(), size);
}

constexpr char kKeptBegin[] = "disk-of-";

std::string kept_path(const std::string& layer, const std::string& image) { return layer + "/" + kKeptBegin + image; }

Result<void> remove_file(const std::string& path) {
  if (::unlink(path.c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove " + path);
  return {};
}

}  // namespace

uint64_t disk_size(uint64_t limit) { return (limit - limit / 32 - (256 << 10)) / kBlock * kBlock; }

Result<void> make_disk(const std::string& from, const std::string& path, uint64_t size) {
  ISOLA_TRY(Ends ends, open_ends(from, path, size, O_CREAT | O_EXCL));
  return fill(ends, size);
}

Result<void> begin_disk(const std::string& from, const std::string& path, uint64_t size,
                        std::function<Result<void>()>& later) {
  ISOLA_TRY(Ends ends, open_ends(from, path, size, O_CREAT | O_EXCL));
  if (::ioctl(ends.to.get(), FICLONE, ends.from.get()) == 0) return enlarge(ends.to.get(), size);
  later = [from, path, size]() -> Result<void> {
    ISOLA_TRY(Ends again, open_ends(from, path, size, 0));
    return fill(again, size);
  };
  return {};
}

Result<bool> keep_disk(const std::string& layer, const std::string& image) {
  ISOLA_CHECK(bring_disk_back(layer, image));
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(layer, error))
    if (file.path().filename().string().starts_with(kKeptBegin)) ISOLA_CHECK(remove_file(file.path()));
  if (error) return fail(Code::unavailable, "cannot list " + layer);
  const std::string kept = kept_path(layer, image), unfinished = kept + ".new";
  ISOLA_TRY(const Ends ends, open_ends(layer + "/upper/disk", unfinished, UINT64_MAX, O_CREAT | O_EXCL));
  if (::ioctl(ends.to.get(), FICLONE, ends.from.get()) < 0) {
    const int why = errno;
    ISOLA_CHECK(remove_file(unfinished));
    if (why == EOPNOTSUPP || why == ENOTTY || why == EINVAL || why == EXDEV || why == ENOSYS) return false;
    if (why == ENOSPC || why == EDQUOT) return false;  // where shared blocks count twice
    return sys_error("cannot keep the disk of the sandbox", why);
  }
  if (::rename(unfinished.c_str(), kept.c_str()) < 0) return sys_error("cannot keep the disk of the sandbox");
  return true;
}

Result<void> bring_disk_back(const std::string& layer, const std::string& image) {
  if (::rename(kept_path(layer, image).c_str(), (layer + "/upper/disk").c_str()) < 0 && errno != ENOENT)
    return sys_error("cannot bring the disk of the sandbox back");
  return {};
}

Result<void> forget_kept_disk(const std::string& layer, const std::string& image) {
  return remove_file(kept_path(layer, image));
}

}  // namespace isola::boundary::box
