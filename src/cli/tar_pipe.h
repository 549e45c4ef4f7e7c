// tar(1) of this machine with one end in our hands. What is unpacked came out of a sandbox: the archive may be a
// hostile one, so tar runs without the privileges that devices, owners and set-user-id bits would take.
//
//   ISOLA_TRY(TarPipe tar, TarPipe::pack(folder));        // read its fd
//   ISOLA_TRY(TarPipe tar, TarPipe::unpack(folder));      // write to its fd
//   ISOLA_CHECK(tar.finish());
#pragma once

#include <sys/types.h>

#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::cli {

class TarPipe {
 public:
  static Result<TarPipe> pack(const std::string& folder);
  static Result<TarPipe> unpack(const std::string& folder);
  TarPipe(TarPipe&& other) noexcept : fd_(std::move(other.fd_)), pid_(std::exchange(other.pid_, -1)) {}
  TarPipe& operator=(TarPipe&&) = delete;
  ~TarPipe();  // ends it if nobody waited for it

  int fd() const { return fd_.get(); }
  Result<void> finish();  // closes our end and waits

 private:
  TarPipe(Fd fd, pid_t pid) : fd_(std::move(fd)), pid_(pid) {}
  Fd fd_;
  pid_t pid_ = -1;
};

}  // namespace isola::cli
