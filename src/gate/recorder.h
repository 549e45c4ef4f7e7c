// What one sandbox did on the network: the last denials, and counts per destination. Bounded, whatever it does.
//
// From the counts comes the smallest policy that would have sufficed, which is what learn mode is for.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "gate/event.h"
#include "gate/loop.h"

namespace isola::gate {

class Recorder {
 public:
  static constexpr size_t kDenials = 256, kDestinations = 1024;

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
  // {"policy": "…", "denials": […], "destinations": {…}, "smallest_policy": "…"}
  std::string report(const std::string& policy) const;

 private:
  void note_denial(Event& event, Clock::time_point now);

  std::string sandbox_;
  std::function<void(const Event&)> sink_;
  std::deque<Event> denials_;
  std::deque<std::pair<Clock::time_point, uint32_t>> told_;  // beside denials_: when, and how many by then
  std::map<std::string, Counts> counts_;
  std::map<std::string, std::map<uint16_t, bool>> used_;  // target → ports
};

}  // namespace isola::gate
