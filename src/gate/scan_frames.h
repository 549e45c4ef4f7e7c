// What the server and the gate say to each other about streams (docs/design-notes/scanner.md), over a socket pair that
// the launcher made (SOCK_SEQPACKET; to the gate one frame in a message, back as many as there are).
//
// The bytes go one way only. The server keeps them; the gate answers how many of them may go on, and which of them are
// to be blotted out. A stream has a number that is never used again, and offsets count from its first byte.
//
//   server → gate                                   gate → server
//   open 7 {sandboxes}
//   data 7 at 0: 4096 bytes                         decided 7: up to 4090, blot 512..548, found: github (base64)
//   data 7 at 4096: 0 bytes, end                    decided 7: up to 4096
//   cut 7
//
// Long pieces need not be in the message (scan_ring.h):
//
//   ring, with a descriptor; before all else
//   laid 7 at 4096: 65536 bytes                     taken: 1; decided 7: up to 69632
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/codec.h"
#include "base/error.h"
#include "scan/forms.h"

namespace isola::gate {

inline constexpr size_t kMaxScanData = 64 << 10;      // in one frame
inline constexpr size_t kMaxScanMessage = 72 << 10;   // with what stands before it; answers, too
inline constexpr size_t kMaxScanned = 64;             // sandboxes that a stream belongs to
inline constexpr size_t kMaxScanContext = 128 << 10;  // more than the longest spelling of the longest value

// ---- to the gate ----

enum class ScanOp : uint8_t { open = 1, data, cut, ring, laid };

struct ScanOpen {
  uint64_t stream = 0;
  std::vector<std::string> sandboxes;  // whose values are searched for
  uint64_t offset = 0;                 // of the first byte to come
  std::string context;                 // bytes before it that went on though a value may begin with them
};
struct ScanData {
  uint64_t stream = 0, offset = 0;
  // After these bytes:
  static constexpr uint8_t kIdle = 1;   // nothing came for a moment: a few bytes that wait may go
  static constexpr uint8_t kPress = 2;  // others wait for what waits here: it goes, blotted out
  static constexpr uint8_t kEnd = 4;    // nothing that follows belongs to what was before
  uint8_t flags = 0;
  std::string_view bytes;
};

std::string encode_open(const ScanOpen& open);
// What stands before the bytes.
std::string encode_data_head(const ScanData& data);
std::string encode_cut(uint64_t stream);
std::string encode_ring();
// The whole message: the bytes, `length` of them, are in the next slot of the ring.
std::string encode_laid(const ScanData& data, size_t length);

// ---- from the gate ----

enum class ScanAnswer : uint8_t { decided = 1, unready, blocked, taken };

struct ScanRange {
  uint64_t offset = 0;
  uint32_t length = 0;
  bool operator==(const ScanRange&) const = default;
};
struct ScanFound {
  std::string binding, secret;
  scan::Form form = scan::Form::raw;
  uint64_t offset = 0;  // of the first, if there are several
  uint32_t count = 1;
  bool operator==(const ScanFound&) const = default;
};

// unready: nothing can be said of this stream now; it is unknown from here on, and `why` says what is missing.
// blocked: nothing of it goes on any more, because of what was found.
// taken: of no stream; `seen` slots of the ring are done with, of all that were laid.
struct ScanReply {
  ScanAnswer what = ScanAnswer::decided;
  uint64_t stream = 0;
  uint64_t decided = 0;  // up to here it may go on
  uint64_t seen = 0;     // and up to here it was looked at
  uint32_t context = 0;  // how many bytes before `decided` may still be the beginning of a value
  std::vector<ScanRange> blots = {};
  std::vector<ScanFound> found = {};
  std::string why = {};
};

void encode(Writer& out, const ScanReply& reply);
void decode(Reader& in, ScanReply& reply);

}  // namespace isola::gate
