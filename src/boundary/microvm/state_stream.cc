#include "boundary/microvm/state_stream.h"

#include <utility>

namespace isola::boundary::microvm {

namespace {

// From the form of QEMU's streams, version 3.
constexpr uint32_t kMagic = 0x5145564d, kVersion = 3;
enum Section : uint8_t { kStart = 1, kPart = 2, kEnd = 3, kFooter = 0x7e };
enum Flag : uint64_t { kZero = 0x02, kSizes = 0x04, kPageFlag = 0x08, kOver = 0x10, kSame = 0x20, kFlags = 0xfff };
// The first section, with its name, number and version, behind a kind and an id.
constexpr std::string_view kMemorySection("\3ram\0\0\0\0\0\0\0\4", 12);
constexpr size_t kMostHeader = 64 << 10, kMostBlocks = 64;

uint64_t number(std::string_view bytes, size_t at, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i) value = value << 8 | static_cast<uint8_t>(bytes[at + i]);
  return value;
}

std::unexpected<Error> bad(const char* why) {
  return fail(Code::corrupt, std::string("what QEMU wrote cannot be read: ") + why);
}

}  // namespace

Result<void> StateStream::keep(size_t bytes) {
  ISOLA_CHECK(rest_(pending().substr(0, bytes)));
  taken_ += bytes;
  return {};
}

Result<void> StateStream::feed(std::string_view bytes) {
  if (where_ == Where::devices) return rest_(bytes);
  fed_ += bytes;
  for (;;) {
    ISOLA_TRY(bool more, step());
    if (!more) break;
  }
  fed_.erase(0, std::exchange(taken_, 0));
  return {};
}

Result<bool> StateStream::step() {
  switch (where_) {
    case Where::header: return header();
    case Where::section: return section();
    case Where::memory: return memory_word();
    case Where::devices: {
      ISOLA_CHECK(keep(pending().size()));
      return false;
    }
  }
  return false;
}

// What the machine is comes before its memory; nobody here needs to know.
Result<bool> StateStream::header() {
  if (pending().size() >= 8 && (number(pending(), 0, 4) != kMagic || number(pending(), 4, 4) != kVersion))
    return bad("it is of another kind or version");
  const size_t at = pending().find(kMemorySection);
  if (at == std::string::npos) {
    if (pending().size() > kMostHeader) return bad("there is no memory in it");
    return false;
  }
  if (at < 13 || pending()[at - 5] != kStart) return bad("its memory has no beginning");
  memory_section_ = static_cast<uint32_t>(number(pending(), at - 4, 4));
  ISOLA_CHECK(keep(at + kMemorySection.size()));
  where_ = Where::memory;
  return true;
}

Result<bool> StateStream::section() {
  if (pending().empty()) return false;
  const auto kind = static_cast<uint8_t>(pending().front());
  if (kind != kFooter && kind != kPart && kind != kEnd) return bad("a section of an unknown kind");
  if (pending().size() < 5) return false;
  if (number(pending(), 1, 4) != memory_section_) return bad("a section that is not of the memory");
  ISOLA_CHECK(keep(5));
  if (kind == kFooter) {
    if (last_) where_ = Where::devices;
    return true;
  }
  last_ = kind == kEnd;
  where_ = Where::memory;
  return true;
}

// "5hello", unless it is the one of the page before.
Result<bool> StateStream::name_at(size_t& at, bool same) {
  if (same) {
    if (block_.empty()) return bad("a page of no block");
    return true;
  }
  if (pending().size() < at + 1) return false;
  const size_t length = static_cast<uint8_t>(pending()[at]);
  if (pending().size() < at + 1 + length) return false;
  block_ = pending().substr(at + 1, length);
  at += 1 + length;
  return true;
}

Result<bool> StateStream::blocks(uint64_t total, size_t at) {
  std::string ram;
  for (size_t count = 0; total > 0; ++count) {
    if (count == kMostBlocks) return bad("too many blocks of memory");
    std::string before = block_;
    ISOLA_TRY(bool there, name_at(at, false));
    std::string name = std::exchange(block_, before);
    if (!there || pending().size() < at + 16) return false;  // a length and an address
    const uint64_t length = number(pending(), at, 8);
    at += 16;
    if (length == 0 || length > total) return bad("a block of memory has no size");
    if (length == memory_ && ram.empty()) ram = name;
    total -= length;
  }
  if (ram.empty()) return bad("the guest's memory is not in it");
  ram_block_ = ram;
  seen_memory_ = true;
  ISOLA_CHECK(keep(at));
  return true;
}

Result<bool> StateStream::memory_word() {
  if (pending().size() < 8) return false;
  const uint64_t word = number(pending(), 0, 8), place = word & ~uint64_t{kFlags};
  const uint64_t what = word & kFlags & ~uint64_t{kSame};
  const bool same = (word & kSame) != 0;
  if (what == kSizes && !same) return seen_memory_ ? bad("its sizes come twice") : blocks(place, 8);
  if (what == kOver && !same) {
    ISOLA_CHECK(keep(8));
    where_ = Where::section;
    return true;
  }
  if ((what != kPageFlag && what != kZero) || !seen_memory_) return bad("an unknown word in the memory");
  size_t at = 8;
  const std::string before = block_;
  ISOLA_TRY(bool there, name_at(at, same));
  const size_t length = what == kZero ? 1 : kPage;
  if (!there || pending().size() < at + length) {
    block_ = before;
    return false;
  }
  if (block_ != ram_block_) {
    ISOLA_CHECK(keep(at + length));
    return true;
  }
  if (place >= memory_) return bad("a page outside of the memory");
  if (what == kZero) {
    ISOLA_CHECK(page_(place, std::string(kPage, pending()[at])));
  } else {
    ISOLA_CHECK(page_(place, pending().substr(at, kPage)));
  }
  taken_ += at + length;
  return true;
}

Result<void> StateStream::finish() {
  if (where_ != Where::devices) return bad("it ends too early");
  return {};
}

}  // namespace isola::boundary::microvm
