// Changing files in a root folder that is not "/": every path is resolved inside it (links too), so a link in the
// tree never leads a privileged writer onto the machine itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image {

class RootTree {
 public:
  static Result<RootTree> open(const std::string& folder);

  const std::string& folder() const { return folder_; }
  Result<std::string> read(const std::string& path) const;  // corrupt: a pipe or the like stands there
  // Replaces whatever is there, a link included.
  Result<void> write(const std::string& path, std::string_view text, int mode = 0644, unsigned owner = 0) const;
  Result<void> append(const std::string& path, std::string_view text) const;  // the file must exist
  // A real folder with that mode and owner; a file or link in its place goes. Parents must exist.
  Result<void> folder_at(const std::string& path, int mode, unsigned owner = 0) const;
  Result<void> link(const std::string& path, const std::string& target) const;
  Result<void> remove(const std::string& path) const;        // file, link or whole folder; quiet when not there
  Result<void> empty_folder(const std::string& path) const;  // removes what is in it; quiet when not there
  Result<void> remove_matching(const std::string& folder, std::string_view prefix, std::string_view suffix) const;
  bool exists(const std::string& path) const;
  // The folder itself, by a path that only this process can use (/proc/self/fd/N), for calls that want a path.
  Result<Fd> open_folder(const std::string& path) const;

 private:
  RootTree(std::string folder, Fd fd) : folder_(std::move(folder)), fd_(std::move(fd)) {}
  struct Place {
    Fd parent;
    std::string name;
  };
  Result<Place> place(const std::string& path) const;

  std::string folder_;
  Fd fd_;
};

}  // namespace isola::image
