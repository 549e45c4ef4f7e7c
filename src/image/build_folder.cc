#include "image/build_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "image/tree.h"

namespace isola::image {

Result<BuildFolder> BuildFolder::make(const std::string& parent, const std::string& name) {
  // Under the gate, so that a sweep never meets a folder whose lock is not taken yet.
  ISOLA_TRY(FileLock gate, FileLock::take(parent + "/gate.lock"));
  std::string path = parent + "/" + name + "-XXXXXX";
  if (!::mkdtemp(path.data())) return sys_error("cannot create a folder in " + parent);
  auto lock = FileLock::take(path + "/lock");
  if (!lock) {
    (void)remove_tree(path);
    return std::unexpected(lock.error());
  }
  return BuildFolder(std::move(path), std::move(*lock));
}

BuildFolder::BuildFolder(BuildFolder&& other) noexcept
    : path_(std::exchange(other.path_, "")), lock_(std::move(other.lock_)) {}

BuildFolder::~BuildFolder() {
  if (!path_.empty()) (void)remove_tree(path_);
}

Result<void> sweep_folders(const std::string& parent) {
  ISOLA_TRY(FileLock gate, FileLock::take(parent + "/gate.lock"));
  ISOLA_TRY(auto names, list_dir(parent));
  for (const auto& name : names) {
    std::string path = parent + "/" + name;
    struct stat st;
    if (::lstat(path.c_str(), &st) < 0 || !S_ISDIR(st.st_mode)) continue;
    auto lock = FileLock::try_take(path + "/lock");
    if (lock)
      ISOLA_CHECK(remove_tree(path));
    else if (lock.error().sys_errno != EWOULDBLOCK)
      return std::unexpected(lock.error());
  }
  return {};
}

}  // namespace isola::image
