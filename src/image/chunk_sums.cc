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

Result<uint64_t> sum_of(const Opened& file, uint64_t number) {
  const uint64_t at = number * kChunk;
  return sum_chunk(file.fd.get(), at, std::min(kChunk, file.size - at));
}

// Nothing was ever written there, as in most of a virtual machine's memory: then nothing has to be read.
bool is_hole(int file, uint64_t from, uint64_t bytes) {
  const off_t data = ::lseek(file, static_cast<off_t>(from), SEEK_DATA);
  if (data >= 0) return static_cast<uint64_t>(data) >= from + bytes;
  struct stat st{};  // behind its end there is no data either
  return errno == ENXIO && ::fstat(file, &st) == 0 && static_cast<uint64_t>(st.st_size) >= from + bytes;
}

uint64_t sum_of_zeros(uint64_t bytes) {
  static const std::vector<char> zeros(kChunk);
  static const uint64_t whole = ::XXH3_64bits(zeros.data(), zeros.size());
  return bytes == kChunk ? whole : ::XXH3_64bits(zeros.data(), bytes);
}

}  // namespace

// Read and not mapped: a file that became shorter meanwhile is an error and not a signal.
Result<uint64_t> sum_chunk(int file, uint64_t from, uint64_t bytes) {
  if (is_hole(file, from, bytes)) return sum_of_zeros(bytes);
  thread_local const std::unique_ptr<char[]> buffer(new char[kChunk]);
  size_t have = 0;
  while (have < bytes) {
    ssize_t n = ::pread(file, buffer.get() + have, bytes - have, static_cast<off_t>(from + have));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read");
    if (n == 0) return fail(Code::corrupt, "the file became shorter");
    have += static_cast<size_t>(n);
  }
  return ::XXH3_64bits(buffer.get(), have);
}

Result<ImageFile> sum_file(const std::string& path, const std::vector<uint64_t>& known) {
  ISOLA_TRY(Opened file, open_file(path));
  // The disk begins its work while we do ours.
  (void)::sync_file_range(file.fd.get(), 0, 0, SYNC_FILE_RANGE_WRITE);
  if (known.size() * kChunk > file.size) return fail(Code::corrupt, path + " became shorter");
  ImageFile out{.size = file.size, .chunks = known};
  for (uint64_t at = known.size() * kChunk; at < file.size; at += kChunk) {
    ISOLA_TRY(uint64_t sum, sum_of(file, at / kChunk));
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

Result<void> forget_cached(const std::string& path) {
  auto file = open_file(path);
  // Whoever reads it says what that means.
  if (!file && file.error().sys_errno == ENOENT) return {};
  if (!file) return std::unexpected(file.error());
  (void)::fdatasync(file->fd.get());  // what is not on its way to the disk yet cannot be let go of
  (void)::posix_fadvise(file->fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return {};
}

Result<void> check_file(const std::string& path, const ImageFile& wanted) {
  auto file = open_file(path);
  if (!file && file.error().sys_errno == ENOENT) return fail(Code::corrupt, wanted.name + " is missing");
  if (!file) return std::unexpected(file.error());
  if (file->size != wanted.size)
    return fail(Code::corrupt, fmt::format("{} has {} bytes and should have {}", wanted.name, file->size, wanted.size));
  for (size_t i = 0; i < wanted.chunks.size(); ++i) {
    auto sum = sum_of(*file, i);
    if (!sum) return std::unexpected(sum.error().in(fmt::format("{}, chunk {}", wanted.name, i)));
    if (*sum != wanted.chunks[i])
      return fail(Code::corrupt, fmt::format("{}, chunk {} (of 1 MiB) is not what was written", wanted.name, i));
  }
  return {};
}

}  // namespace isola::image
