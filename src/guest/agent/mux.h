// The guest's end of the link without its I/O: bytes in, frames to channels, frames from channels, bytes out.
//
// A Channel is one running operation. It sends data only as far as the host's credit and the out queue allow
// (`room()`), and does long work in slices: whoever has more to do is on the ready list and gets step() called once per
// round, so no call keeps the loop for long and no channel starves another. Control frames (reply, end, credit) are
// always queued: there are at most a few per channel, and channels are bounded.
//
// finish() ends a channel at once for the host; the object itself goes when the round is over (sweep), so a channel may
// finish itself or another in the middle of a callback.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "guest/link.h"
#include "guest/messages.h"

namespace isola::guest {

class Mux;

class Channel {
 public:
  enum class Step { idle, again };

  virtual ~Channel() = default;
  virtual void on_data(std::string_view) {}  // at most the window that was granted; answer with grant() when consumed
  virtual void on_eof() {}
  virtual Step step() { return Step::idle; }

 protected:
  size_t room() const;  // how much data may be sent in one frame now; 0 = wait, step() is called when that changes
  void reply(std::string_view bytes);
  void send(std::string_view a, std::string_view b = {});
  void send_eof();
  void grant(uint32_t bytes);  // consumed: told to the host in portions of half a window
  void schedule();
  void finish(Result<std::string> result);
  bool finished() const { return finished_; }

 private:
  friend class Mux;
  Mux* mux_ = nullptr;
  uint32_t id_ = 0;
  uint64_t credit_ = 0;             // what the host lets us send
  uint64_t window_ = kGuestWindow;  // what we let the host send
  uint32_t owed_ = 0;
  bool ready_ = false, finished_ = false, host_eof_ = false;
};

class Mux {
 public:
  // Makes the channel for an operation; an error, or a result without a channel, ends it at once.
  struct Opened {
    std::unique_ptr<Channel> channel;
    std::string result;
  };
  using Opener = std::function<Result<Opened>(Op, std::string_view args)>;

  explicit Mux(Opener opener) : opener_(std::move(opener)) {}

  void begin(std::string_view sandbox_id, uint32_t generation,
             std::string_view preface = {});  // drops everything of the old one, queues a hello
  void feed(std::string_view bytes);
  bool broken() const { return broken_; }  // the host sent nonsense: nothing more happens until begin()
  // A frame that only a relay sends; without somebody who takes it, it is nonsense like any other.
  std::function<void(std::string_view payload)> on_naming;
  // Op::quiesce was acked: what is queued goes out, then silence until Op::go_on or a new generation.
  bool quiesced() const { return quiesced_; }

  void run_ready();  // one step for each channel that is ready and may send
  bool has_ready() const { return !ready_.empty() && may_queue(); }
  void sweep() { graveyard_.clear(); }

  std::string_view out() const { return std::string_view(out_).substr(out_at_); }
  void sent(size_t bytes);
  void relax();  // nothing is under way: give back what a burst left over
  size_t channels() const { return channels_.size(); }

 private:
  friend class Channel;
  static constexpr size_t kOutSoft = 128 << 10;
  struct Pending {  // an open whose arguments are not complete
    Op op;
    uint32_t window;
    std::string args;
  };

  bool may_queue() const { return !quiesced_ && out_.size() - out_at_ < kOutSoft; }
  void put(uint32_t channel, Type type, std::string_view a, std::string_view b = {});
  void handle(const Frame& frame);
  void open(uint32_t id, Op op, uint32_t window, std::string_view args);
  void end_with(uint32_t id, const Result<std::string>& result);
  void end_channel(Channel* channel, const Result<std::string>& result);
  void schedule(Channel* channel);

  Opener opener_;
  FrameParser parser_;
  std::unordered_map<uint32_t, std::unique_ptr<Channel>> channels_;
  std::unordered_map<uint32_t, Pending> pending_;
  size_t pending_bytes_ = 0;
  std::deque<uint32_t> ready_;
  std::vector<std::unique_ptr<Channel>> graveyard_;
  std::string out_;
  std::string held_;  // control frames of a quiesced link, for when it goes on
  size_t out_at_ = 0;
  bool broken_ = false, quiesced_ = false;
};

}  // namespace isola::guest
