// Memory in which the server lays long pieces of streams for the gate, instead of having the kernel copy them into a
// message and out of it again (scan_frames.h). Pieces are laid and taken in order; each has a slot of its own.
//
//   auto ring = ScanRing::make();                     the server: its descriptor goes to the gate, in the first message
//   char* slot = ring->free_slot();                   null: the gate has not taken enough; the piece goes in the
//   message … copy, send that one was laid …; ring->laid(); ring->taken(count);                               as the
//   gate says
//
//   auto seen = ScanRingView::map(std::move(fd));     the gate, which can only read it
//   std::string_view bytes = *seen->take(length);
//
// The gate believes nothing of it but that it stays as long as it is: its seals say so. What the server changes while
// it is searched is the server's loss, which could as well not ask.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fd.h"
#include "gate/scan_frames.h"

namespace isola::gate {

inline constexpr size_t kScanSlots = 8;

// Mapped as long as this lives.
class ScanMemory {
 public:
  static Result<ScanMemory> map(const Fd& fd, bool writable);
  ScanMemory(ScanMemory&& other) noexcept : at_(std::exchange(other.at_, nullptr)) {}
  ScanMemory& operator=(ScanMemory&&) = delete;
  ~ScanMemory();
  char* slot(uint64_t number) const { return at_ + number % kScanSlots * kMaxScanData; }

 private:
  explicit ScanMemory(char* at) : at_(at) {}
  char* at_;
};

class ScanRing {
 public:
  static Result<ScanRing> make();
  const Fd& fd() const { return fd_; }
  char* free_slot() { return laid_ - taken_ < kScanSlots ? memory_.slot(laid_) : nullptr; }
  void laid() { ++laid_; }
  // How many of all that were laid the gate has done with. False: that cannot be.
  bool taken(uint64_t count);

 private:
  ScanRing(Fd fd, ScanMemory memory) : fd_(std::move(fd)), memory_(std::move(memory)) {}
  Fd fd_;
  ScanMemory memory_;
  uint64_t laid_ = 0, taken_ = 0;
};

class ScanRingView {
 public:
  static Result<ScanRingView> map(const Fd& fd);
  // The next piece that was laid; nothing: none is so long.
  std::optional<std::string_view> take(size_t length);
  uint64_t taken() const { return taken_; }

 private:
  explicit ScanRingView(ScanMemory memory) : memory_(std::move(memory)) {}
  ScanMemory memory_;
  uint64_t taken_ = 0;
};

}  // namespace isola::gate
