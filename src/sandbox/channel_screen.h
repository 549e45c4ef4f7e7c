// One channel of a guest whose data the gate looks through before anybody reads it. Frames go in as the guest sent
// them and come out in the same order, with what was found blotted out; pieces of output keep their stream and their
// sequence numbers, but may come in more pieces than they were. Everything runs on the channel's home worker.
//
// Standard output and standard error are two streams: a value is found in either, however they alternate. Their pieces
// keep their order, so that a reader can begin again behind the last one. Where one stream holds back the beginning of
// a value and the other goes on, what is held back is blotted out rather than keep the other waiting.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <map>

#include "guest/messages.h"
#include "sandbox/screening.h"

namespace isola::sandbox {

class ChannelScreen : public std::enable_shared_from_this<ChannelScreen> {
 public:
  struct Out {
    std::function<void(std::string frame, uint32_t cost)> deliver;  // `cost`: bytes of the guest's window
    std::function<void(const Error& why)> failed;                   // nothing is delivered any more
    std::function<Screening::Place()> place;                        // but for its stream
  };
  // Null: there is nothing to search for after all.
  static std::shared_ptr<ChannelScreen> make(guest::Op op, std::shared_ptr<const Screening> screening,
                                             boost::asio::io_context& home, Out out);
  ~ChannelScreen();

  void take(std::string_view frame);
  // When everything that was taken has been delivered.
  void finish(std::function<void()> then);
  // Nobody reads it any more: what waits is thrown away, and whoever waits for its end has it.
  void drop();

 private:
  enum class Shape : uint8_t { bytes, records, pieces };
  struct Lane {
    std::unique_ptr<ScanStream> stream;
    std::string name;
    uint64_t fed = 0, seen = 0, decided = 0;
    uint64_t nudged = 0;  // fed, when it was last asked to let go of something
    std::deque<ScanStream::Passed> passed;
    struct Count {
      gate::ScanFound first;
      uint32_t untold = 0;
    };
    std::map<std::string, Count> found;  // by binding
    bool holds() const { return seen == fed && decided < fed; }
  };
  struct Piece {
    uint8_t stream = 0;
    uint64_t seq = 0;
    uint32_t left = 0, cost = 0;
    std::string whole;  // what is no output
  };

  ChannelScreen(guest::Op op, std::shared_ptr<const Screening> screening, boost::asio::io_context& home, Out out);
  Lane* lane(uint8_t number);
  void progress(uint8_t number, ScanStream::Progress& progress);
  void take_piece(std::string_view frame);
  void deliver();
  void nudge_soon();
  void nudge();
  void fail(const Error& why);
  void tell(Lane& lane, const gate::ScanFound& found);
  bool all_delivered() const;

  const guest::Op op_;
  const Shape shape_;
  std::shared_ptr<const Screening> screening_;
  boost::asio::io_context& home_;
  Out out_;
  std::map<uint8_t, Lane> lanes_;
  std::deque<Piece> pieces_;
  boost::asio::steady_timer timer_;
  bool timing_ = false, failed_ = false, ending_ = false;
  std::optional<Error> refused_;  // why nothing passes from the beginning
  std::vector<std::function<void()>> then_;
};

}  // namespace isola::sandbox
