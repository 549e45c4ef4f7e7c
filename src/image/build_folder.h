// A folder for work that may be killed: owned by the flock on its `lock` file, removed when the work ends, however it
// ends, and found by sweep_folders if nobody lived to remove it.
//
//   ISOLA_CHECK(sweep_folders(root + "/build"));
//   ISOLA_TRY(BuildFolder folder, BuildFolder::make(root + "/build", "base"));
#pragma once

#include <string>

#include "base/error.h"
#include "image/file_lock.h"

namespace isola::image {

class BuildFolder {
 public:
  // In `parent`, which is there; for its maker alone.
  static Result<BuildFolder> make(const std::string& parent, const std::string& name);
  BuildFolder(BuildFolder&& other) noexcept;
  BuildFolder& operator=(BuildFolder&&) = delete;
  ~BuildFolder();
  const std::string& path() const { return path_; }

 private:
  BuildFolder(std::string path, FileLock lock) : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  FileLock lock_;
};

// Removes those whose makers are no longer alive.
Result<void> sweep_folders(const std::string& parent);

}  // namespace isola::image
