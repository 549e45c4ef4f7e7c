// An advisory lock on a file, held as long as the object lives; the kernel frees it when the holder dies.
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::image {

class FileLock {
 public:
  // Creates the file if needed. `take` waits; `try_take` fails with Code::unavailable when somebody else has it.
  static Result<FileLock> take(const std::string& path);
  static Result<FileLock> try_take(const std::string& path);

 private:
  explicit FileLock(Fd fd) : fd_(std::move(fd)) {}
  Fd fd_;
};

}  // namespace isola::image
