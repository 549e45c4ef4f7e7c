#include "image/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

namespace isola::image {

namespace {

Result<Fd> locked(const std::string& path, int how) {
  Fd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return sys_error("cannot open the lock " + path);
  while (::flock(fd.get(), how) < 0) {
    if (errno == EINTR) continue;
    return sys_error(errno == EWOULDBLOCK ? path + " is locked by another process" : "cannot lock " + path);
  }
  return fd;
}

}  // namespace

Result<FileLock> FileLock::take(const std::string& path) {
  ISOLA_TRY(Fd fd, locked(path, LOCK_EX));
  return FileLock(std::move(fd));
}

Result<FileLock> FileLock::try_take(const std::string& path) {
  ISOLA_TRY(Fd fd, locked(path, LOCK_EX | LOCK_NB));
  return FileLock(std::move(fd));
}

}  // namespace isola::image
