// The guest's end of the link without its I/O: bytes in, frames to channels, frames from channels, bytes out.
//
// A Channel is one running operation. It sends data only as far as the host's credit and the out queue allow
// (`room()`), and does long work in slices: whoever has more to do is on the ready list and gets step() called once per
// round, so no call keeps the loop for long and no channel starves another. Control frames (reply, end, credit) are
// always queued: there are at most a few per channel, and channels are bounded.
//
// What a file holds goes out without being copied, where the link is a pipe: its pages wait in a pipe of our own
// (Stage) and are moved from there into the link's, each portion behind the head of its frame.
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
#include "base/fd.h"
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
  // At most so many bytes of a file, within room(): how many it were, 0 at its end, -1: send() has to do it.
  ssize_t send_file(int fd, uint64_t at, size_t most);
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

class Stage {
 public:
  bool open();  // false: there is none to be had that would be worth it
  void close() { *this = Stage(); }
  bool has_room(size_t bytes) const { return used_ + slots(bytes) <= slots_; }
  ssize_t take(int file, uint64_t at, size_t most);  // as splice()
  ssize_t move(int out, size_t most);                // the same

 private:
  static size_t slots(size_t bytes) { return bytes / 4096 + 2; }  // pages that it may touch
  Fd read_, write_;
  size_t slots_ = 0, used_ = 0;
  std::deque<std::pair<size_t, size_t>> portions_;  // bytes left, slots
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
  // Op::go_on, with its arguments.
  std::function<void(std::string_view args)> on_go_on;
  // Op::quiesce was acked: what is queued goes out, then silence until Op::go_on or a new generation.
  bool quiesced() const { return quiesced_; }

  void run_ready();  // one step for each channel that is ready and may send
  bool has_ready() const { return !ready_.empty() && may_queue(); }
  void sweep() { graveyard_.clear(); }

  // What is to be sent next: bytes, or where there are none, portions of files (by move_file()).
  std::string_view out() const { return std::string_view(out_).substr(out_at_); }
  bool has_file() const { return !tails_.empty(); }
  ssize_t move_file(int out) { return stage_.move(out, tails_.front().left); }
  void sent(size_t bytes);
  void allow_files(bool allow) { files_ = allow; }  // the link is a pipe
  void relax();                                     // nothing is under way: give back what a burst left over
  size_t channels() const { return channels_.size(); }

 private:
  friend class Channel;
  static constexpr size_t kOutSoft = 128 << 10;
  struct Pending {  // an open whose arguments are not complete
    Op op;
    uint32_t window;
    std::string args;
  };

  struct Tail {   // comes behind out_, and behind the tails before it
    size_t left;  // bytes of a file
    std::string after;
  };

  bool may_queue() const {
    return !quiesced_ && out_.size() - out_at_ + after_ < kOutSoft && (tails_.empty() || stage_.has_room(kMaxPayload));
  }
  std::string& queue() { return tails_.empty() ? out_ : tails_.back().after; }
  ssize_t put_file(uint32_t channel, int fd, uint64_t at, size_t most);
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
  std::deque<Tail> tails_;
  size_t after_ = 0;  // bytes behind tails
  Stage stage_;
  bool broken_ = false, quiesced_ = false, files_ = false;
};

}  // namespace isola::guest
