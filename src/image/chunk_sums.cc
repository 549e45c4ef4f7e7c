#include "image/chunk_sums.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "base/fd.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

struct Opened {
  Fd fd;
  uint64_t size = 0;
};

Result<Opened> open_file(const std::string& path) {
  Opened file;
  // Without waiting: it may be a pipe that an engine of a sandbox left there.
  file.fd = Fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat st{};
  if (!file.fd || ::fstat(file.fd.get(), &st) < 0) return sys_error("cannot open " + path);
  if (!S_ISREG(st.st_mode)) return fail(Code::corrupt, path + " is not a file");
  file.size = static_cast<uint64_t>(st.st_size);
  return file;
}

// Read and not mapped: a file that became shorter meanwhile is an error and not a signal.
class Chunks {
 public:
  explicit Chunks(const Opened& file) : file_(file), buffer_(new char[kChunk]) {}
  Result<uint64_t> sum(uint64_t number) {
    uint64_t at = number * kChunk, left = std::min(kChunk, file_.size - at);
    size_t have = 0;
    while (have < left) {
      ssize_t n = ::pread(file_.fd.get(), buffer_.get() + have, left - have, static_cast<off_t>(at + have));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return sys_error("cannot read");
      if (n == 0) return fail(Code::corrupt, "the file became shorter");
      have += static_cast<size_t>(n);
    }
    return ::XXH3_64bits(buffer_.get(), have);
  }

 private:
  const Opened& file_;
  std::unique_ptr<char[]> buffer_;
};

}  // namespace

Result<ImageFile> sum_file(const std::string& path) {
  ISOLA_TRY(Opened file, open_file(path));
  // The disk begins its work while we do ours.
  (void)::sync_file_range(file.fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  ImageFile out{.size = file.size};
  Chunks chunks(file);
  for (uint64_t at = 0; at < file.size; at += kChunk) {
    ISOLA_TRY(uint64_t sum, chunks.sum(at / kChunk));
    out.chunks.push_back(sum);
  }
  return out;
}

Result<void> sync_file(const std::string& path) {
  ISOLA_TRY(Opened file, open_file(path));
  if (int e = kernel::fault::at("fsync")) return sys_error("cannot put " + path + " on disk", e);
  if (::fsync(file.fd.get()) < 0) return sys_error("cannot put " + path + " on disk");
  return {};
}

Result<void> check_file(const std::string& path, const ImageFile& wanted) {
  auto file = open_file(path);
  if (!file && file.error().sys_errno == ENOENT) return fail(Code::corrupt, wanted.name + " is missing");
  if (!file) return std::unexpected(file.error());
  if (file->size != wanted.size)
    return fail(Code::corrupt, fmt::format("{} has {} bytes and should have {}", wanted.name, file->size, wanted.size));
  Chunks chunks(*file);
  for (size_t i = 0; i < wanted.chunks.size(); ++i) {
    auto sum = chunks.sum(i);
    if (!sum) return std::unexpected(sum.error().in(fmt::format("{}, chunk {}", wanted.name, i)));
    if (*sum != wanted.chunks[i])
      return fail(Code::corrupt, fmt::format("{}, chunk {} (of 1 MiB) is not what was written", wanted.name, i));
  }
  return {};
}

}  // namespace isola::image
