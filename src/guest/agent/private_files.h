// Files for one command: in memory, readable by its user alone, and gone when it ends.
//
//   ISOLA_TRY(PrivateFiles files, PrivateFiles::make({"TOKEN_FILE=value"}, user));
//   env.push_back(files.variables()[0]);              // TOKEN_FILE=/dev/shm/.isola-…/TOKEN_FILE
//
// What a command keeps of them is its own affair: whoever may read a file may copy it.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "base/fd.h"
#include "guest/agent/users.h"

namespace isola::guest {

class PrivateFiles {
 public:
  PrivateFiles() = default;
  ~PrivateFiles() { remove(); }
  PrivateFiles(PrivateFiles&& other) noexcept { *this = std::move(other); }
  PrivateFiles& operator=(PrivateFiles&& other) noexcept;

  // Each is "NAME=content"; the name becomes the file's, and that of the variable that says where it is.
  static Result<PrivateFiles> make(const std::vector<std::string>& files, const User& user);
  const std::vector<std::string>& variables() const { return variables_; }
  void remove();

 private:
  // By descriptor: whatever the folder is called by then.
  Fd folder_;
  std::string name_;
  std::vector<std::string> names_, variables_;
};

}  // namespace isola::guest
