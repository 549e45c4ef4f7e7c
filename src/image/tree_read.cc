#include "image/tree_read.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/fd.h"
#include "base/log.h"
#include "image/tree.h"

namespace isola::image {

namespace {

constexpr size_t kReadAtOnce = 1 << 20;

// What a disk has lost, or what keeps us from looking.
std::unexpected<Error> unreadable(const std::string& path, int number) {
  const bool lost = number == EIO || number == EUCLEAN || number == EBADMSG;
  return fail(lost ? Code::corrupt : Code::unavailable, log::quoted(path) + " cannot be read: " + std::strerror(number),
              number);
}

// Without its holes: a file may say that it is larger than any disk.
Result<void> read_file_through(int fd, off_t size, const std::string& path, std::string& buffer) {
  (void)::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // what is in memory says nothing of the disk
  for (off_t at = 0; at < size;) {
    off_t data = ::lseek(fd, at, SEEK_DATA);
    if (data < 0 && errno == ENXIO) return {};
    if (data > at) at = data;
    ssize_t n = ::pread(fd, buffer.data(), buffer.size(), at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return unreadable(path, errno);
    if (n == 0) return {};
    at += n;
  }
  return {};
}

// Only named: no pipe or device is opened, whatever somebody inside has put there. And by no link on the way: a folder
// that was listed may be one now, since who resumes an image may be writing to what it stood on.
Fd name_below(const Fd& root, const std::string& name) {
  open_how how{};
  how.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV;
  return Fd(static_cast<int>(::syscall(SYS_openat2, root.get(), name.c_str(), &how, sizeof how)));
}

// Too deep; gone or changed since it was listed: somebody is using what he was made of, or removing it.
bool passed_over(int number) {
  return number == ENAMETOOLONG || number == ENOENT || number == ENOTDIR || number == ELOOP || number == EXDEV ||
         number == EAGAIN;
}

constexpr size_t kMostNames = 256 << 20;  // bytes of those that are still to be looked at

}  // namespace

Result<void> read_tree(const std::string& path) {
  Fd root(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!root) return sys_error("cannot open " + path);
  std::string buffer(kReadAtOnce, '\0');
  size_t held = 0;
  for (std::vector<std::string> left = {"."}; !left.empty();) {
    std::string name = std::move(left.back());
    left.pop_back();
    held -= std::min(held, name.size());
    Fd there = name_below(root, name);
    if (!there && passed_over(errno)) continue;
    struct stat st{};
    if (!there || ::fstat(there.get(), &st) < 0) return unreadable(name, errno);
    const std::string opened = "/proc/self/fd/" + std::to_string(there.get());
    if (S_ISDIR(st.st_mode)) {
      auto names = list_dir(opened);
      if (!names) return unreadable(name, names.error().sys_errno);
      for (auto& one : *names) {
        left.push_back(name + "/" + one);
        held += left.back().size();
        if (held > kMostNames) return fail(Code::unsupported, path + " has too many names to be read through");
      }
    } else if (S_ISREG(st.st_mode)) {
      Fd file(::open(opened.c_str(), O_RDONLY | O_NOATIME | O_CLOEXEC));
      if (!file && errno == EPERM) file = Fd(::open(opened.c_str(), O_RDONLY | O_CLOEXEC));  // somebody else's
      if (!file) return unreadable(name, errno);
      ISOLA_CHECK(read_file_through(file.get(), st.st_size, name, buffer));
    }
  }
  return {};
}

}  // namespace isola::image
