// What the tests of layers have in common: what is left of them on the machine, and filling them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/file.h"
#include "image/tree.h"

namespace isola::image {

constexpr uint64_t MiB = 1 << 20;

inline size_t mounts_below(const std::string& dir) {
  std::string text = read_file("/proc/self/mountinfo").value();
  size_t n = 0;
  for (size_t at = text.find(" " + dir); at != std::string::npos; at = text.find(" " + dir, at + 1)) ++n;
  return n;
}

inline size_t loops_below(const std::string& dir) {
  size_t n = 0;
  auto names = list_dir("/sys/block").value();
  for (const auto& name : names) {
    auto file = read_file("/sys/block/" + name + "/loop/backing_file");
    if (file && file->starts_with(dir)) ++n;
  }
  return n;
}

// The first data of `file` that is this, where it lies on the disk below.
inline off_t find_on_disk(int file, std::string_view wanted) {
  constexpr size_t kBlock = 4096;
  std::string block(kBlock, '\0');
  for (off_t at = ::lseek(file, 0, SEEK_DATA); at >= 0; at = ::lseek(file, at, SEEK_DATA)) {
    at -= at % static_cast<off_t>(kBlock);
    if (::pread(file, block.data(), kBlock, at) != static_cast<ssize_t>(kBlock)) return -1;
    if (block.starts_with(wanted)) return at;
    at += static_cast<off_t>(kBlock);
  }
  return -1;
}

struct Filled {
  uint64_t amount = 0;
  int error = 0;
};

inline Filled fill_bytes(const std::string& path, uint64_t most) {
  Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return {0, errno};
  std::string chunk(64 << 10, 'x');
  Filled f;
  while (f.amount < most) {
    ssize_t n = ::write(fd.get(), chunk.data(), chunk.size());
    if (n < 0) return f.error = errno, f;
    f.amount += static_cast<uint64_t>(n);
  }
  if (::fsync(fd.get()) < 0) f.error = errno;
  return f;
}

inline Filled fill_inodes(const std::string& dir, uint64_t most) {
  Filled f;
  for (; f.amount < most; ++f.amount) {
    Fd fd(::open((dir + "/" + std::to_string(f.amount)).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    if (!fd) return f.error = errno, f;
  }
  return f;
}

inline bool out_of_space(int error) { return error == ENOSPC || error == EDQUOT; }

}  // namespace isola::image
