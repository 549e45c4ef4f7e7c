// Owns one file descriptor; closes it when it goes.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

namespace isola {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  explicit operator bool() const { return valid(); }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

// Descriptors that live long are kept from this number on, so that what is needed for a moment has low numbers: a child
// that is to inherit only those can then leave all others behind in one step.
inline constexpr int kKeptFrom = 512;
// The same descriptor, out of the way. It stays where it is if there is no room.
inline Fd kept(Fd fd) {
  if (!fd || fd.get() >= kKeptFrom) return fd;
  int high = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, kKeptFrom);
  return high < 0 ? std::move(fd) : Fd(high);
}

}  // namespace isola
