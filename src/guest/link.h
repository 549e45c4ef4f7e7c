// The link: one multiplexed byte stream between the host and isola-guest. This file is the wire form, shared by both
// ends; docs/link.md is its table. What each operation carries is in messages.h.
//
// A frame is {u32 length, u32 channel, u8 type} and `length` bytes of payload, at most 64 KiB. The host opens channels
// (it chooses the ids); everything on a channel is about that one operation:
//
//   host                                   guest
//   open(7, op=run, window=256K, args)  →
//                                       ←  reply(7, pid)
//                                       ←  data(7, "hello\n")     spends the window that the host granted
//   credit(7, 6)                        →                         the host has consumed six bytes
//                                       ←  end(7, ok, exit status)
//
// Only `data` is flow-controlled, by credit per channel and direction, so a slow reader of one channel holds up nobody
// else. FrameParser takes bytes as they come and never holds more than one frame; after the first malformed byte it
// stays bad, because a stream that lost its framing cannot be trusted to find it again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/codec.h"
#include "base/error.h"

namespace isola::guest {

inline constexpr uint32_t kMagic = 0x6c6f7369;  // "isol"
inline constexpr uint16_t kVersion = 1;
inline constexpr size_t kHeader = 9;
inline constexpr size_t kMaxPayload = 64 << 10;
inline constexpr size_t kMaxArgs = 16 << 20;         // arguments of one operation, over all its frames
inline constexpr uint32_t kGuestWindow = 128 << 10;  // what the host may send on a new channel before the first credit
inline constexpr uint32_t kMostCredit = 512 << 10;   // what it may be let send at a time: a guest that grants more lies
inline constexpr uint32_t kHostWindow = 256 << 10;   // what the host grants by default
inline constexpr size_t kMaxChannels = 1024;

// fds of isola-guest in the pipe form. The guest holds both ends of both pipes, so that a host process that dies
// closes nothing and a checkpoint sees only pipes that begin and end inside.
inline constexpr int kFdInRead = 3;    // the guest's
inline constexpr int kFdOutWrite = 4;  // the guest's
inline constexpr int kFdInWrite = 5;   // kept for the host
inline constexpr int kFdOutRead = 6;   // kept for the host
// SIGRTMIN + this, sent from outside the sandbox's pid namespace: "make new pipes, say hello again".
inline constexpr int kReattachSignal = 1;

enum class Type : uint8_t {
  hello = 1,   // guest → host, channel 0: Hello
  open = 2,    // host → guest: u8 op, u32 window, u8 more, bytes of the arguments
  args = 3,    // host → guest: u8 more, further bytes of the arguments
  reply = 4,   // guest → host: at most one per channel, before data
  data = 5,    // both: flow-controlled bytes
  credit = 6,  // both: u32, that many further bytes of data may be sent
  eof = 7,     // both: no further data in this direction
  end = 8,     // guest → host: u8 ok, then the result, or u8 code, i32 errno, str message. Closes the channel
  cancel = 9,  // host → guest: no longer wanted; the guest answers with end
};

struct Frame {
  uint32_t channel = 0;
  Type type = Type::hello;
  std::string_view payload;  // lives until the parser is touched again
};

class FrameParser {
 public:
  // Takes the next whole frame off `input` (removing what it used); false when more bytes are needed. Bytes of an
  // unfinished frame are kept inside, so `input` is always used up when this returns false.
  Result<bool> next(std::string_view& input, Frame& frame);
  void reset();
  size_t held() const { return held_.size(); }

 private:
  std::string held_;
  bool deliver_held_ = false;  // held_ was handed out as a frame: drop it at the next call
  bool bad_ = false;
};

// Appends a frame whose payload is `a` and then `b`; together at most kMaxPayload.
void put_frame(std::string& out, uint32_t channel, Type type, std::string_view a, std::string_view b = {});
// Appends the head of one whose payload of `length` bytes comes from elsewhere.
void put_head(std::string& out, uint32_t channel, Type type, size_t length);

struct Hello {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  std::string id;           // of the sandbox
  uint32_t generation = 0;  // counts how often the link was made anew

  template <typename A>
  void fields(A& a) {
    a(magic, version, id, generation);
  }
};

std::string encode_error(const Error& error);
// The payload of an end frame: its result bytes, or the guest's error with a message cut to what a person can read.
Result<std::string_view> decode_end(std::string_view payload);

}  // namespace isola::guest
