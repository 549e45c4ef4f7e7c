#include "guest/agent/path.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

namespace isola::guest {

namespace {

FileType type_of(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG: return FileType::file;
    case S_IFDIR: return FileType::dir;
    case S_IFLNK: return FileType::link;
    case S_IFIFO: return FileType::fifo;
    case S_IFSOCK: return FileType::socket;
    case S_IFCHR: return FileType::chardev;
    case S_IFBLK: return FileType::blockdev;
    default: return FileType::unknown;
  }
}

int64_t ns(timespec t) { return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec; }

}  // namespace

Result<Stat> stat_at(int dir, const std::string& name, bool follow) {
  struct stat st;
  int flags = (follow ? 0 : AT_SYMLINK_NOFOLLOW) | (name.empty() ? AT_EMPTY_PATH : 0);
  if (::fstatat(dir, name.c_str(), &st, flags) < 0) {
    return sys_error("cannot look at " + shown(name));
  }
  Stat out{.type = type_of(st.st_mode),
           .mode = st.st_mode & 07777,
           .uid = st.st_uid,
           .gid = st.st_gid,
           .size = static_cast<uint64_t>(st.st_size),
           .inode = st.st_ino,
           .links = st.st_nlink,
           .mtime_ns = ns(st.st_mtim),
           .ctime_ns = ns(st.st_ctim)};
  if (S_ISLNK(st.st_mode)) {
    std::array<char, 4096> target;
    ssize_t n = ::readlinkat(dir, name.c_str(), target.data(), target.size());
    if (n > 0) out.target.assign(target.data(), static_cast<size_t>(n));
  }
  return out;
}

Fd open_folder(int parent, const char* name) {
  return Fd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
}

Result<void> make_parents(const std::string& path, uint32_t mode) {
  for (size_t at = path.find_first_not_of('/'); at != std::string::npos;) {
    at = path.find('/', at);
    size_t next = path.find_first_not_of('/', at);
    if (at == std::string::npos || next == std::string::npos) break;  // the last part is not ours
    auto part = path.substr(0, at);
    if (::mkdir(part.c_str(), mode & 07777) < 0 && errno != EEXIST) {
      int error = errno;
      struct stat st;
      if (::stat(part.c_str(), &st) < 0) return sys_error("cannot create the folder " + shown(part), error);
    }
    at = next;
  }
  return {};
}

std::string shown(const std::string& path) { return path.size() <= 200 ? path : path.substr(0, 200) + "…"; }

Split split(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  auto slash = path.rfind('/');
  if (slash == std::string::npos) return {".", path};
  return {slash == 0 ? "/" : path.substr(0, slash), path.substr(slash + 1)};
}

}  // namespace isola::guest
