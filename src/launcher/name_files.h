// Small files that come and go by the hundred in one folder, each appearing whole and under a name that nobody else
// has. A file that goes is put aside and used again for the next one: making and freeing an inode each time costs ext4
// a search that grows with the number of inodes freed in the last seconds.
//
//   ISOLA_TRY(auto files, NameFiles::open("/run/isola/ids", 0755));
//   ISOLA_CHECK(files.add("17", "whose it is"));   // Code::exists when somebody has the name
//   files.remove("17");
//
// Several processes may share a folder. What a process has put aside goes with it; what a killed one left is thrown
// away by the next that opens the folder.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace isola::launcher {

class NameFiles {
 public:
  static Result<NameFiles> open(const std::string& folder, int mode);  // makes it
  NameFiles() = default;
  NameFiles(NameFiles&& other) noexcept
      : folder_(std::move(other.folder_)), owner_(other.owner_), aside_(std::exchange(other.aside_, 0)) {}
  NameFiles& operator=(NameFiles&& other) noexcept {
    std::swap(folder_, other.folder_);
    std::swap(owner_, other.owner_);
    std::swap(aside_, other.aside_);
    return *this;
  }
  ~NameFiles();

  Result<void> add(const std::string& name, std::string_view text);
  // One that is there, in one step: whoever is killed on the way leaves the old one or the new one.
  Result<void> replace(const std::string& name, std::string_view text);
  void remove(const std::string& name);
  const std::string& folder() const { return folder_; }
  // Files put aside start with a dot: whoever reads the folder leaves those out.
  static bool is_aside(std::string_view name) { return name.starts_with('.'); }

 private:
  static constexpr int kMostAside = 256;
  Result<std::string> write_aside(std::string_view text);
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string aside(int number) const { return folder_ + "/." + std::to_string(owner_) + "." + std::to_string(number); }

  std::string folder_;
  pid_t owner_ = 0;  // a forked child that runs our destructor is not the owner
  int aside_ = 0;    // how many there are: numbers 0 … aside_ - 1
};

}  // namespace isola::launcher
