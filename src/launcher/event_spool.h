// What the gate told, on its way to the ledger of a server that may be away: numbered, written to files before anybody
// is told, and kept until the server says that its ledger has it.
//
//   spool.append(event);                                       // heard from the gate
//   while (auto next = spool.next()) send(next->number, next->event);
//   spool.acknowledge(number);                                 // all up to there are in the ledger
//   spool.rewind();                                            // somebody else listens: again from there on
//
// A file that was written survives kill -9 of everybody; nothing is synced, as a crash of the host ends the sandboxes
// too. It is bounded, for all and for each sandbox: what finds no room is counted, and the count is told when there is
// room again. Numbers rise, from one launcher to the next, and begin at the clock's microseconds: a folder that was
// lost does not bring old ones back.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/fd.h"
#include "gate/event.h"

namespace isola::launcher {

class EventSpool {
 public:
  struct Options {
    std::string folder;
    size_t most = 64 << 20;    // bytes of all that is not acknowledged
    size_t of_one = 8 << 20;   // … of one sandbox
    size_t segment = 1 << 20;  // of one file; one that is acknowledged as a whole is removed
  };
  struct Numbered {
    uint64_t number = 0;
    gate::Event event;
  };

  explicit EventSpool(Options options) : options_(std::move(options)) {}

  // Whether it was begun, now or by an earlier launcher: until there is a server, there is nobody to keep anything for.
  bool begun() const { return begun_; }
  // Finds what an earlier one left. `create`: a server is there, it begins.
  Result<void> open(bool create);
  void append(const gate::Event& event);
  // The oldest that was not given out since the last rewind.
  std::optional<Numbered> next();
  void rewind();
  void acknowledge(uint64_t number);
  uint64_t acknowledged() const { return acknowledged_; }
  // A server has entries up to there, which this one never gave out: the folder is not what it was.
  void skip_to(uint64_t number);
  uint64_t next_number() const { return next_; }

 private:
  struct Segment {
    uint64_t first = 0, last = 0;  // last < first: nothing is in it yet
    size_t size = 0;
    std::map<std::string, size_t> of;  // bytes of each sandbox
  };
  bool has_room(const std::string& sandbox, size_t size) const;
  Result<void> write(const gate::Event& event);
  Result<void> begin_segment();
  Result<void> read_segment(uint64_t first);
  void count(Segment& segment, const std::string& sandbox, size_t size);
  void drop_acknowledged();
  void tell_lost();
  std::string path_of(uint64_t first) const;

  Options options_;
  bool begun_ = false;
  uint64_t next_ = 1, acknowledged_ = 0;
  std::deque<Segment> segments_;  // the oldest first
  Fd writing_;                    // the last of them; none: the next one begins with the next event
  Fd acknowledgements_;
  size_t bytes_ = 0;
  std::map<std::string, size_t> of_;        // bytes of each sandbox
  std::map<std::string, gate::Lost> lost_;  // that found no room
  // Where next() is.
  uint64_t reading_ = 0;  // the first number of the file; 0: none is open
  Fd read_;
  size_t at_ = 0;
  uint64_t given_ = 0;  // the number that was given out last
};

}  // namespace isola::launcher
