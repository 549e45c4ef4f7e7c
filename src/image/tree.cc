#include "image/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.h"

namespace isola::image {

namespace {

using Dir = std::unique_ptr<DIR, int (*)(DIR*)>;

// A stream of its own (own offset) for an open folder.
Result<Dir> stream(int fd) {
  int copy = ::openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return sys_error("cannot read a folder");
  DIR* dir = ::fdopendir(copy);
  if (!dir) {
    auto error = sys_error("cannot read a folder");
    ::close(copy);
    return error;
  }
  return Dir(dir, ::closedir);
}

bool dots(const char* name) { return std::strcmp(name, ".") == 0 || std::strcmp(name, "..") == 0; }

// Empties the folder of everything but filled folders; gives back one of those, or an invalid Fd when it is empty now.
Result<Fd> sweep(int fd) {
  ISOLA_TRY(Dir dir, stream(fd));
  for (;;) {
    errno = 0;
    dirent* entry = ::readdir(dir.get());
    if (!entry) {
      if (errno) return sys_error("cannot read a folder");
      return Fd();
    }
    if (dots(entry->d_name)) continue;
    if (::unlinkat(fd, entry->d_name, 0) == 0 || errno == ENOENT) continue;
    if (errno != EISDIR && errno != EPERM) return sys_error("cannot remove a file");
    if (::unlinkat(fd, entry->d_name, AT_REMOVEDIR) == 0 || errno == ENOENT) continue;
    if (errno != ENOTEMPTY && errno != EEXIST) return sys_error(std::string("cannot remove ") + entry->d_name);
    Fd child(::openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!child) return sys_error("cannot open a folder");
    return child;
  }
}

}  // namespace

Result<void> remove_tree(const std::string& path) {
  if (::unlink(path.c_str()) == 0 || errno == ENOENT) return {};
  if (errno != EISDIR && errno != EPERM) return sys_error("cannot remove " + path);
  if (::rmdir(path.c_str()) == 0) return {};
  if (errno != ENOTEMPTY && errno != EEXIST) return sys_error("cannot remove " + path);
  Fd at(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat root, here;
  if (!at || ::fstat(at.get(), &root) < 0) return sys_error("cannot open " + path);
  // Down into a filled folder, up by ".." when it is empty: the parent's next sweep finds it removable. So neither
  // names nor descriptors pile up with the depth, only numbers: somebody may move the folder in which we stand, and up
  // would lead out of the tree.
  std::vector<ino_t> above;
  for (ino_t now = root.st_ino;;) {
    auto child = sweep(at.get());
    if (!child) return std::unexpected(child.error().in(path));
    if (*child) {
      if (::fstat(child->get(), &here) < 0) return sys_error("cannot read a folder in " + path);
      if (here.st_dev != root.st_dev) return fail(Code::invalid, path + " has another filesystem mounted in it");
      at = std::move(*child);
      above.push_back(std::exchange(now, here.st_ino));
    } else if (above.empty()) {
      break;
    } else {
      Fd up(::openat(at.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (!up || ::fstat(up.get(), &here) < 0) return sys_error("cannot go up in " + path);
      if (here.st_dev != root.st_dev || here.st_ino != above.back())
        return fail(Code::unavailable, path + " changes while it is being removed");
      at = std::move(up);
      now = above.back();
      above.pop_back();
    }
  }
  if (::rmdir(path.c_str()) < 0 && errno != ENOENT) return sys_error("cannot remove " + path);
  return {};
}

Result<std::vector<std::string>> list_dir(const std::string& path) {
  std::vector<std::string> names;
  Dir dir(::opendir(path.c_str()), ::closedir);
  if (!dir) {
    if (errno == ENOENT) return names;
    return sys_error("cannot read the folder " + path);
  }
  for (;;) {
    errno = 0;
    dirent* entry = ::readdir(dir.get());
    if (!entry) break;
    if (!dots(entry->d_name)) names.emplace_back(entry->d_name);
  }
  if (errno) return sys_error("cannot read the folder " + path);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace isola::image
