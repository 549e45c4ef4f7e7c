#include "image/root_tree.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/file.h"
#include "image/tree.h"

namespace isola::image {

namespace {

Result<Fd> open_in(int root, const std::string& path, int flags) {
  open_how how{
      .flags = static_cast<uint64_t>(flags | O_CLOEXEC), .mode = 0, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
  Fd fd(static_cast<int>(::syscall(SYS_openat2, root, path.c_str(), &how, sizeof how)));
  if (!fd) return sys_error("cannot open " + path + " in the root folder");
  return fd;
}

// To read or write: what a stranger's tree has there may be a pipe, whose opening would wait for ever.
Result<Fd> open_file_in(int root, const std::string& path, int flags) {
  ISOLA_TRY(Fd fd, open_in(root, path, flags | O_NONBLOCK | O_NOCTTY));
  struct stat st;
  if (::fstat(fd.get(), &st) < 0) return sys_error("cannot look at " + path);
  if (!S_ISREG(st.st_mode)) return fail(Code::corrupt, path + " in the root folder is not a file");
  return fd;
}

std::string by_fd(const Fd& fd, const std::string& name) {
  return "/proc/self/fd/" + std::to_string(fd.get()) + "/" + name;
}

}  // namespace

Result<RootTree> RootTree::open(const std::string& folder) {
  Fd fd(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd) return sys_error("cannot open the root folder " + folder);
  return RootTree(folder, std::move(fd));
}

Result<RootTree::Place> RootTree::place(const std::string& path) const {
  auto slash = path.rfind('/');
  std::string parent = slash == std::string::npos || slash == 0 ? "/" : path.substr(0, slash);
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  if (name.empty() || name == "." || name == "..") return fail(Code::invalid, "not a file name: " + path);
  ISOLA_TRY(Fd fd, open_in(fd_.get(), parent, O_PATH | O_DIRECTORY));
  return Place{std::move(fd), std::move(name)};
}

Result<Fd> RootTree::open_folder(const std::string& path) const {
  return open_in(fd_.get(), path, O_PATH | O_DIRECTORY);
}

Result<std::string> RootTree::read(const std::string& path) const {
  ISOLA_TRY(Fd fd, open_file_in(fd_.get(), path, O_RDONLY));
  return read_file("/proc/self/fd/" + std::to_string(fd.get()));
}

Result<void> RootTree::write(const std::string& path, std::string_view text, int mode, unsigned owner) const {
  ISOLA_CHECK(remove(path));
  ISOLA_TRY(Place at, place(path));
  Fd fd(::openat(at.parent.get(), at.name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd) return sys_error("cannot create " + path + " in the root folder");
  ISOLA_CHECK(write_all(fd.get(), text));
  if (::fchown(fd.get(), owner, owner) < 0 || ::fchmod(fd.get(), static_cast<mode_t>(mode)) < 0)
    return sys_error("cannot set the owner of " + path);
  return {};
}

Result<void> RootTree::append(const std::string& path, std::string_view text) const {
  ISOLA_TRY(Fd fd, open_file_in(fd_.get(), path, O_WRONLY | O_APPEND));
  return write_all(fd.get(), text);
}

Result<void> RootTree::folder_at(const std::string& path, int mode, unsigned owner) const {
  ISOLA_TRY(Place at, place(path));
  struct stat st;
  if (::fstatat(at.parent.get(), at.name.c_str(), &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode))
    if (::unlinkat(at.parent.get(), at.name.c_str(), 0) < 0) return sys_error("cannot replace " + path);
  if (::mkdirat(at.parent.get(), at.name.c_str(), 0700) < 0 && errno != EEXIST)
    return sys_error("cannot create " + path);
  Fd fd(::openat(at.parent.get(), at.name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::fchown(fd.get(), owner, owner) < 0 || ::fchmod(fd.get(), static_cast<mode_t>(mode)) < 0)
    return sys_error("cannot set the owner of " + path);
  return {};
}

Result<void> RootTree::link(const std::string& path, const std::string& target) const {
  ISOLA_CHECK(remove(path));
  ISOLA_TRY(Place at, place(path));
  if (::symlinkat(target.c_str(), at.parent.get(), at.name.c_str()) < 0) return sys_error("cannot link " + path);
  return {};
}

Result<void> RootTree::remove(const std::string& path) const {
  auto at = place(path);
  if (!at) {
    if (at.error().sys_errno == ENOENT) return {};
    return std::unexpected(at.error());
  }
  return remove_tree(by_fd(at->parent, at->name));
}

Result<void> RootTree::remove_matching(const std::string& folder, std::string_view prefix,
                                       std::string_view suffix) const {
  auto fd = open_folder(folder);
  if (!fd) {
    if (fd.error().sys_errno == ENOENT) return {};
    return std::unexpected(fd.error());
  }
  ISOLA_TRY(auto names, list_dir(by_fd(*fd, "")));
  for (const auto& name : names)
    if (name.starts_with(prefix) && name.ends_with(suffix)) ISOLA_CHECK(remove_tree(by_fd(*fd, name)));
  return {};
}

Result<void> RootTree::empty_folder(const std::string& path) const { return remove_matching(path, "", ""); }

bool RootTree::exists(const std::string& path) const { return open_in(fd_.get(), path, O_PATH).has_value(); }

}  // namespace isola::image
