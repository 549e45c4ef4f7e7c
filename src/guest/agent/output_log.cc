#include "guest/agent/output_log.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace isola::guest {

namespace {

constexpr size_t kRecord = 5;

// The block that was sealed or read back last. One for all logs: a reader a little behind finds its block here without
// a system call, and idle logs hold no memory for it.
struct Cache {
  uint64_t log = 0, block = 0;
  std::string bytes;
} cache;

uint64_t next_id = 1;

void put_header(char* at, Stream stream, uint32_t length) {
  *at = static_cast<char>(stream);
  std::memcpy(at + 1, &length, sizeof length);
}

// For a kernel without O_TMPFILE (gVisor's): a name that nobody can know before, for a moment.
Fd named_for_a_moment(const char* dir) {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number)) return Fd();
  const std::string path = std::string(dir) + "/.isola-" + std::to_string(number);
  Fd fd(::open(path.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600));
  if (fd) ::unlink(path.c_str());
  return fd;
}

Fd private_file() {
  for (const char* dir : {"/var/tmp", "/tmp", "/"}) {
    if (int fd = ::open(dir, O_TMPFILE | O_RDWR | O_EXCL | O_CLOEXEC, 0600); fd >= 0) return Fd(fd);
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) continue;
    if (Fd fd = named_for_a_moment(dir)) return fd;
  }
  return Fd();
}

}  // namespace

OutputLog::OutputLog(size_t slots) : slots_(slots), id_(next_id++) {}

void OutputLog::append(Stream stream, std::string_view bytes, uint64_t needed) {
  while (!bytes.empty()) {
    if (current_.size() + kRecord >= kBlock) seal(needed);
    bool extend = last_record_ != std::string::npos && current_[last_record_] == static_cast<char>(stream);
    size_t space = kBlock - current_.size() - (extend ? 0 : kRecord);
    auto part = bytes.substr(0, space);
    if (!extend) {
      last_record_ = current_.size();
      current_.append(kRecord, '\0');
    }
    current_.append(part);
    put_header(&current_[last_record_], stream, static_cast<uint32_t>(current_.size() - last_record_ - kRecord));
    end_ += part.size();
    bytes.remove_prefix(part.size());
  }
}

bool OutputLog::spill() {
  if (!file_) file_ = private_file();
  if (!file_) return false;
  auto at = static_cast<off_t>(block_ % slots_ * kBlock);
  return ::pwrite(file_.get(), current_.data(), current_.size(), at) == static_cast<ssize_t>(current_.size());
}

void OutputLog::drop_oldest() {
  in_memory_.erase(oldest());
  sealed_.pop_front();
}

void OutputLog::seal(uint64_t needed) {
  if (sealed_.size() == slots_) drop_oldest();  // its place in the file is taken
  full_ = !spill();
  // What is kept must stay contiguous: where this block goes, all before it have gone.
  while (full_ && !sealed_.empty() && (sealed_.size() > 1 ? sealed_[1] : current_first_) <= needed) drop_oldest();
  if (!full_ || end_ > needed) {
    if (full_) in_memory_[block_] = current_;
    sealed_.push_back(current_first_);
  }
  cache.log = id_;
  cache.block = block_;
  std::swap(cache.bytes, current_);
  current_.clear();
  ++block_;
  current_first_ = end_;
  last_record_ = std::string::npos;
}

std::string_view OutputLog::raw(uint64_t block) const {
  if (block == block_) return current_;
  if (cache.log == id_ && cache.block == block) return cache.bytes;
  if (auto at = in_memory_.find(block); at != in_memory_.end()) return at->second;
  cache.log = 0;
  cache.bytes.resize(kBlock);
  auto n = ::pread(file_.get(), cache.bytes.data(), kBlock, static_cast<off_t>(block % slots_ * kBlock));
  if (n < 0) n = 0;
  cache.bytes.resize(static_cast<size_t>(n));
  cache.log = id_;
  cache.block = block;
  return cache.bytes;
}

OutputLog::Cursor OutputLog::seek(uint64_t seq) const {
  Cursor c{.seq = seq, .block = 0};
  if (seq < begin()) {
    c.block = oldest() == 0 ? 0 : oldest() - 1;
    if (oldest() == 0) c.seq = begin();
    return c;
  }
  seq = std::min(seq, end_);
  if (seq >= current_first_) {
    c = {.seq = current_first_, .block = block_};
  } else {
    auto at = std::upper_bound(sealed_.begin(), sealed_.end(), seq) - 1;
    c = {.seq = *at, .block = oldest() + static_cast<uint64_t>(at - sealed_.begin())};
  }
  while (c.seq < seq) {
    auto piece = next(c, seq - c.seq);
    if (!piece || piece->stream == Stream::gap) break;
  }
  return c;
}

std::optional<OutputLog::Piece> OutputLog::next(Cursor& c, size_t max) const {
  for (;;) {
    if (c.block < oldest()) {
      Piece gap{Stream::gap, begin(), {}, begin() - c.seq};
      c = {.seq = begin(), .block = oldest()};
      if (gap.lost > 0) return gap;
    }
    auto bytes = raw(c.block);
    bool sealed = c.block < block_;
    auto next_block = [&] {
      uint64_t first = c.block + 1 == block_ ? current_first_ : sealed_[c.block + 1 - oldest()];
      uint64_t lost = first > c.seq ? first - c.seq : 0;  // the file did not give back what it was given
      c = {.seq = first, .block = c.block + 1};
      return lost;
    };
    if (bytes.size() < c.offset + kRecord) {
      if (!sealed) return std::nullopt;
      if (uint64_t lost = next_block()) return Piece{Stream::gap, c.seq, {}, lost};
      continue;
    }
    uint32_t length;
    std::memcpy(&length, bytes.data() + c.offset + 1, sizeof length);
    auto stream = static_cast<Stream>(bytes[c.offset]);
    size_t have = bytes.size() - c.offset - kRecord;
    if (length > have || c.skip > length) {  // torn block
      c.offset = static_cast<uint32_t>(bytes.size());
      continue;
    }
    if (c.skip == length) {
      if (!sealed && c.offset + kRecord + length == bytes.size()) return std::nullopt;  // may still grow
      c.offset += static_cast<uint32_t>(kRecord) + length;
      c.skip = 0;
      continue;
    }
    Piece piece{stream, c.seq, bytes.substr(c.offset + kRecord + c.skip, std::min<size_t>(max, length - c.skip))};
    c.skip += static_cast<uint32_t>(piece.bytes.size());
    c.seq += piece.bytes.size();
    return piece;
  }
}

void OutputLog::relax() {
  if (cache.bytes.capacity() > 0) cache = {};
}

void OutputLog::drop() {
  sealed_.clear();
  in_memory_.clear();
  current_ = {};
  file_.reset();
  ++block_;
  current_first_ = end_;
  last_record_ = std::string::npos;
}

}  // namespace isola::guest
