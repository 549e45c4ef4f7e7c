// What carries requests and answers between the two legs of a connection that is looked into: http1_relay.h or
// http2_relay.h. The same HTTP on both legs, so that nothing is translated.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "gate/inspector.h"
#include "gate/leg.h"

namespace isola::gate {

// Bytes that wait for a leg to take them.
class Outbox {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  std::string& tail() { return bytes_; }  // to append to
  size_t size() const { return bytes_.size() - at_; }
  bool empty() const { return size() == 0; }
  std::string_view view() const { return std::string_view(bytes_).substr(at_); }
  // As much as the leg takes.
  Moved flush(Leg& leg) {
    Moved all{Io::blocked, 0};
    while (!empty()) {
      auto moved = leg.write(bytes_.data() + at_, size());
      if (moved.how != Io::moved) {
        if (moved.how != Io::blocked) return moved;
        break;
      }
      at_ += moved.bytes, all.bytes += moved.bytes, all.how = Io::moved;
    }
    if (empty()) bytes_.clear(), at_ = 0;
    // A slow reader must not make us keep what it has read already.
    if (at_ > bytes_.size() / 2) bytes_.erase(0, at_), at_ = 0;
    return all;
  }

 private:
  std::string bytes_;
  size_t at_ = 0;
};

// What a connection takes beyond what every one has: heads and bodies that wait. In the sandbox's share while it does.
struct Budget {
  std::function<bool(size_t)> more;  // may it have so many bytes more?
  std::function<void(size_t)> less;
};
class Charge {
 public:
  explicit Charge(const Budget* budget) : budget_(budget) {}
  ~Charge() { clear(); }
  Charge(const Charge&) = delete;
  Charge& operator=(const Charge&) = delete;
  bool add(size_t bytes) {
    if (budget_ && budget_->more && !budget_->more(bytes)) return false;
    bytes_ += bytes;
    return true;
  }
  // What the other one stands for is this one's from now on.
  void take_over(Charge& other) { bytes_ += std::exchange(other.bytes_, 0); }
  void clear() {
    if (budget_ && budget_->less && bytes_ > 0) budget_->less(bytes_);
    bytes_ = 0;
  }

 private:
  const Budget* budget_;  // none: as much as it likes
  size_t bytes_ = 0;
};

// How long nothing has followed what is held back of one answer.
enum class Pause : uint8_t { none, watched, over };

class Relay {
 public:
  enum class State { going, again, done, broken };  // again: there is more to do at once
  virtual ~Relay() = default;
  // Moves what can be moved.
  virtual State pump() = 0;
  // Somebody has begun to say something and not finished: for so long it may take, and no longer.
  virtual bool is_waiting_for_head() const = 0;
  // An answer's last bytes wait, since a value could begin with them. Where nothing follows for a moment, a few of them
  // may go (screen.h).
  //
  //   if (relay.begin_to_wait()) …           // something is held back, and it is remembered that nothing follows
  //   relay.let_go();                        // after the moment: of what nothing followed since. Each answer by itself
  //
  virtual bool begin_to_wait() = 0;
  virtual void let_go() = 0;
  // A request waits for a credential that is being made.
  virtual bool waits_for_value() const = 0;

  static constexpr int kRounds = 16;          // before it is somebody else's turn
  static constexpr size_t kPiece = 16 << 10;  // read at once
  static constexpr size_t kHigh = 64 << 10;   // that wait for a leg: then nothing more is read for it
};

const char* phrase_of(int status);

}  // namespace isola::gate
