// What one sandbox did on the network: the last denials, and counts per destination. Bounded, whatever it does.
//
// From the counts comes the smallest policy that would have sufficed, which is what learn mode is for. What is recorded
// here is gone with the gate; the ledger has what was told.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>

#include "gate/event.h"
#include "gate/loop.h"
#include "gate/token_bucket.h"

namespace isola::gate {

class Recorder {
 public:
  static constexpr size_t kDenials = 256, kDestinations = 1024, kPairs = 4096, kMerged = 512;

  struct Counts {
    uint64_t connections = 0, denied = 0, up = 0, down = 0;
    bool allowed = false;  // at least once
  };

  // `sink` gets every event that is news: a denial that repeats is told once a second, with its count, and so are
  // connections where there are many. No byte is left out.
  Recorder(std::string sandbox, std::function<void(const Event&)> sink);

  void record(Event event, Clock::time_point now);
  // Tells what was held back. Once a second, and for the last time when the sandbox goes.
  void flush(Clock::time_point now, bool last = false);

  const std::deque<Event>& denials() const { return denials_; }
  const std::map<std::string, Counts>& counts() const { return counts_; }  // by "name:port" or "[address]:port"
  // One exact rule per name or address that was let through, with its ports, and nothing else.
  Policy smallest_policy() const;
  // The same as text of at most so many bytes: whole lines, and where that is not all of it, a last one that says how
  // many are missing ("# too many names: 12 are not in this list").
  std::string smallest_policy_text(size_t most) const;
  // {"policy": "…", "since": …, "denials": […], "destinations": {…}, "smallest_policy": "…"}. Fits into a message of
  // the launcher.
  std::string report(const std::string& policy) const;

 private:
  Counts& counts_of(const Event& event);
  void note_denial(Event& event, Clock::time_point now);
  void note_use(const Event& event);
  void tell(Event event, Clock::time_point now);

  std::string sandbox_;
  std::function<void(const Event&)> sink_;
  std::deque<Event> denials_;
  int64_t since_;
  TokenBucket fresh_{10, 256};                                   // denials that are told one by one
  std::deque<std::pair<Clock::time_point, uint32_t>> told_;      // beside denials_: when, and how many by then
  bool held_back_ = false;                                       // some of them
  TokenBucket each_{20, 256};                                    // other events that are told one by one
  std::map<std::pair<Event::Kind, std::string>, Event> merged_;  // the rest, by destination
  std::map<std::string, Counts> counts_;
  size_t only_denied_ = 0;  // of counts_
  struct Use {
    std::set<uint16_t> ports;
    bool local = false;              // the name led to a private address
    Reason hello = Reason::allowed;  // what the policy of names that this becomes would refuse
  };
  std::map<std::string, Use> used_;  // by name or address
  size_t pairs_ = 0;                 // of a target and a port, in all
  std::set<size_t> left_out_;        // hashes of targets that found no room
};

}  // namespace isola::gate
