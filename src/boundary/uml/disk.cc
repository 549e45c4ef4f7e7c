#include "boundary/uml/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/fd.h"

namespace isola::boundary::uml {

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

}  // namespace

uint64_t disk_size(uint64_t limit) { return (limit - limit / 32 - (256 << 10)) / kBlock * kBlock; }

Result<void> make_disk(const std::string& empty, const std::string& path, uint64_t size) {
  Fd from(::open(empty.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat st{};
  if (!from || ::fstat(from.get(), &st) < 0) return sys_error("cannot open the empty disk");
  if (static_cast<uint64_t>(st.st_size) > size) return fail(Code::invalid, "the sandbox's disk is too small");
  Fd to(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!to) return sys_error("cannot make the sandbox's disk");
  for (off_t at = 0; at < st.st_size;) {
    off_t data = ::lseek(from.get(), at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) break;
    off_t hole = data < 0 ? -1 : ::lseek(from.get(), data, SEEK_HOLE);
    if (hole < 0) return sys_error("cannot read the empty disk");
    ISOLA_CHECK(copy_piece(from.get(), to.get(), data, hole));
    at = hole;
  }
  if (::ftruncate(to.get(), static_cast<off_t>(size)) < 0) return sys_error("cannot make the sandbox's disk");
  return {};
}

}  // namespace isola::boundary::uml
