// What one sandbox did on the network: the last denials, and counts per destination. Bounded, whatever it does.
//
// From the counts comes the smallest policy that would have sufficed, which is what learn mode is for.
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
  static constexpr size_t kDenials = 256, kDestinations = 1024, kPairs = 4096;

  struct Counts {
    uint64_t connections = 0, denied = 0, up = 0, down = 0;
    bool allowed = false;  // at least once
  };

  // `sink` gets every event that is news: a denial that repeats is told once a second, with its count.
  Recorder(std::string sandbox, std::function<void(const Event&)> sink)
      : sandbox_(std::move(sandbox)), sink_(std::move(sink)) {}

  void record(Event event, Clock::time_point now);

  const std::deque<Event>& denials() const { return denials_; }
  const std::map<std::string, Counts>& counts() const { return counts_; }  // by "name:port" or "[address]:port"
  // One exact rule per name or address that was let through, with its ports, and nothing else.
  Policy smallest_policy() const;
  // The same as text of at most so many bytes: whole lines, and where that is not all of it, a last one that says how
  // many are missing ("# too many names: 12 are not in this list").
  std::string smallest_policy_text(size_t most) const;
  // {"policy": "…", "denials": […], "destinations": {…}, "smallest_policy": "…"}. Fits into a message of the launcher.
  std::string report(const std::string& policy) const;

 private:
  void note_denial(Event& event, Clock::time_point now);
  void note_use(const Event& event);

  std::string sandbox_;
  std::function<void(const Event&)> sink_;
  std::deque<Event> denials_;
  TokenBucket fresh_{10, 256};                               // denials that are told one by one
  std::deque<std::pair<Clock::time_point, uint32_t>> told_;  // beside denials_: when, and how many by then
  std::map<std::string, Counts> counts_;
  struct Use {
    std::set<uint16_t> ports;
    bool local = false;  // the name led to a private address
  };
  std::map<std::string, Use> used_;  // by name or address
  size_t pairs_ = 0;                 // of a target and a port, in all
  std::set<size_t> left_out_;        // hashes of targets that found no room
};

}  // namespace isola::gate
