// The names that one sandbox has asked for: each has a synthetic address per family that means this name in this
// sandbox and nothing anywhere else, and the real addresses that it led to, for as long as that answer was good for.
//
// Addresses are given out going round from a random start: one comes back for another name only after 130,000 others,
// also when the gate was restarted in between.
#pragma once

#include <functional>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "gate/lookup.h"
#include "gate/share.h"

namespace isola::gate {

inline constexpr char kSynthetic4[] = "198.18.0.0/15";
inline constexpr char kSynthetic6[] = "fd69:736f:6c61:5359::/64";  // beside the sandbox's own address

class Names {
 public:
  static constexpr size_t kMax = 4096, kLittle = 256;

  struct Entry {
    std::string name;
    uint32_t number = 0;
    Answer answer;
    Clock::time_point good_until{};
    std::vector<std::function<void(const Answer&)>> waiting;  // for a look-up that is under way
    std::list<uint32_t>::iterator used;
  };

  // `pool`: of the names that all sandboxes together may have.
  Names(uint32_t start, Pool& pool);

  // The entry of a name, made if need be; nullptr if there is no room, but for names that are being looked up.
  Entry* enter(std::string_view name);
  Entry* find(std::string_view name);
  // The name behind a synthetic address of this sandbox, or null.
  Entry* behind(const Address& address);
  static bool is_synthetic(const Address& address);
  static Address four(const Entry& entry);
  static Address six(const Entry& entry);
  size_t size() const { return entries_.size(); }

 private:
  bool forget_oldest();
  void touch(Entry& entry) { order_.splice(order_.end(), order_, entry.used); }

  Share share_;
  uint32_t next_;
  std::unordered_map<uint32_t, Entry> entries_;             // by number
  std::unordered_map<std::string_view, uint32_t> numbers_;  // by name; the text is the entry's
  std::list<uint32_t> order_;                               // least recently used first
};

}  // namespace isola::gate
