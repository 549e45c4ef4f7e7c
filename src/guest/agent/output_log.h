// What a process wrote, kept for readers that come late or come back: the newest 64 KiB in memory, 16 MiB in a private
// file that has no name, older output dropped. Readers hold a Cursor of their own, so none of them waits for another
// and none holds up the process. Where the disk is full, what somebody must still get stays in memory: whoever appends
// must soon stop then (full()).
//
//   log.append(Stream::out, "hello\n");
//   auto cursor = log.seek(0);
//   while (auto piece = log.next(cursor, 4096)) use(piece->stream, piece->seq, piece->bytes);
//
// Positions are byte counts over all streams. Inside, output is stored as records {u8 stream, u32 length, bytes} in
// blocks of 64 KiB; block n of the file lies at slot n % slots, so one pwrite per 64 KiB keeps the file bounded, and
// the number of records does not matter to memory.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "guest/messages.h"

namespace isola::guest {

class OutputLog {
 public:
  static constexpr size_t kBlock = 64 << 10;
  static constexpr size_t kSlots = 256;

  struct Cursor {
    uint64_t seq = 0, block = 0;
    uint32_t offset = 0, skip = 0;  // of the record in its block; bytes of it already read
  };
  struct Piece {
    Stream stream;
    uint64_t seq;            // of the first byte; for a gap: where output goes on
    std::string_view bytes;  // lives until the log, or any other, is touched again
    uint64_t lost = 0;       // gap only
  };

  explicit OutputLog(size_t slots = kSlots);
  static constexpr uint64_t kNobody = UINT64_MAX;
  // From `needed` on nothing is dropped because the disk is full.
  void append(Stream stream, std::string_view bytes, uint64_t needed = kNobody);
  bool full() const { return full_; }  // the last block found no room on the disk
  Cursor seek(uint64_t seq) const;     // before the oldest: next() begins with a gap; past the end: the end
  std::optional<Piece> next(Cursor& cursor, size_t max) const;
  uint64_t begin() const { return sealed_.empty() ? current_first_ : sealed_.front(); }
  uint64_t end() const { return end_; }
  void settle() { current_.shrink_to_fit(); }  // nothing more is expected: give back what growing left over
  void drop();                                 // forget everything but the sequence numbers
  bool on_disk() const { return file_.valid(); }
  static void relax();  // nobody reads: the shared block cache can go
  size_t memory() const { return current_.capacity() + in_memory_.size() * kBlock; }

 private:
  void seal(uint64_t needed);
  void drop_oldest();
  bool spill();
  std::string_view raw(uint64_t block) const;  // empty when it cannot be read back
  uint64_t oldest() const { return block_ - sealed_.size(); }

  size_t slots_;
  uint64_t id_;                                // tells logs apart in the shared read cache
  std::deque<uint64_t> sealed_;                // first seq of each block in the file, oldest first
  std::map<uint64_t, std::string> in_memory_;  // those of them that the file had no room for
  bool full_ = false;
  std::string current_;
  uint64_t block_ = 0, current_first_ = 0, end_ = 0;
  size_t last_record_ = std::string::npos;  // offset in current_
  Fd file_;
};

}  // namespace isola::guest
