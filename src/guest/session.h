// The host's end of the link without its I/O: put in what the guest sent, take out what goes to it. Works the same
// under poll (client.h) and under coroutines.
//
//   Session s;
//   s.on_hello = [](const Hello& h) { … };
//   uint32_t ch = s.open(Op::run, encode(start), {.data = on_piece, .end = on_end});
//   …
//   s.feed(bytes_from_guest);                      // calls the callbacks
//   write(fd, s.out()); s.sent(n);
//
// Everything that comes in is the guest's word, and the guest is not trusted: a frame that breaks the rules (a channel
// nobody opened, more data than was granted, a second hello) makes feed() fail for good, never the process. Callbacks
// may open, send and cancel; they must not destroy the Session.
//
// Credit goes back to the guest by itself as soon as `data` returns. A consumer that cannot keep up opens its channel
// with manual = true and calls grant() when it has consumed: until then the guest holds the rest. A window is at least
// 64 KiB, so that a whole record always fits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "guest/link.h"
#include "guest/messages.h"

namespace isola::guest {

struct ChannelCallbacks {
  std::function<void(std::string_view)> reply;
  std::function<void(std::string_view)> data;
  std::function<void()> eof;
  std::function<void()> writable;                     // credit came in after send() took less than it was given
  std::function<void(Result<std::string_view>)> end;  // always the last call, exactly once
};

class Session {
 public:
  // A guest that ends nothing fills no memory of ours. More than it has open itself (kMaxChannels), since it may have
  // ended many that we have not heard of yet: whoever asks a thousand short questions at once is answered.
  static constexpr size_t kMostOpen = 4 * kMaxChannels;

  std::function<void(const Hello&)> on_hello;

  // Where kMostOpen are open it ends at once, inside this call, with Code::exhausted, and 0 is returned: the number of
  // no channel, with which everything below does nothing.
  uint32_t open(Op op, std::string_view args, ChannelCallbacks callbacks, uint32_t window = kHostWindow,
                bool manual = false);
  size_t send(uint32_t channel, std::string_view bytes);  // how many were taken: as far as the guest's credit goes
  size_t sendable(uint32_t channel) const;
  void send_eof(uint32_t channel);
  // Nobody is interested any more: whatever is still on its way is dropped, granted or not; only its end still comes.
  void cancel(uint32_t channel);
  void grant(uint32_t channel, uint32_t bytes);

  Result<void> feed(std::string_view bytes);
  std::string_view out() const { return std::string_view(out_).substr(out_at_); }
  void sent(size_t bytes);

  const Hello* hello() const { return greeted_ ? &hello_ : nullptr; }
  size_t channels() const { return channels_.size(); }
  // The link is gone or about to be made anew: every open channel ends with `why`, then a new hello is awaited.
  void reset(const Error& why);

 private:
  struct Channel {
    ChannelCallbacks on;
    uint64_t send_credit = kGuestWindow;
    uint64_t window = 0;           // what the guest may still send
    uint32_t batch = 0, owed = 0;  // consumed and not granted again yet: one credit frame for many data frames
    bool manual = false, replied = false, eof = false, sent_eof = false, blocked = false, cancelled = false;
  };
  Result<void> handle(const Frame& frame);
  Result<void> greet(const Frame& frame);

  FrameParser parser_;
  std::unordered_map<uint32_t, std::shared_ptr<Channel>> channels_;
  std::string out_;
  size_t out_at_ = 0;
  uint32_t next_ = 1;
  Hello hello_;
  bool greeted_ = false, bad_ = false;
};

}  // namespace isola::guest
