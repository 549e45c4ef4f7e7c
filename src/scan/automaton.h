// One automaton for all values of a sandbox: finds every spelling of every one of them, in one pass.
//
//   ISOLA_TRY(auto automaton, Automaton::make({{"github", value}, {"billing", other}}));   // shared, never changes
//   Stream stream(automaton);                                                             // stream.h: one for each
//   stream
//
// Inside: an Aho-Corasick automaton over letters without case (where case matters, the bytes are compared when a whole
// spelling is there), and in front of it a table of three-byte blocks that says how far the next possible beginning is
// away (Wu and Manber). Most bytes of a stream are never looked at: the longer the shortest value, the fewer.
//
// Values that are too short to search for, or that consist of one character alone, would be found everywhere: they are
// left out, and `unsearched()` names them, so that whoever grants them can refuse. The memory is that of about 750
// times the length of the values; it is wiped when the automaton goes.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "scan/forms.h"

namespace isola::scan {

struct Value {
  std::string id;  // what a hit is reported under; never the value itself
  std::string_view bytes;
};

inline constexpr size_t kShortestValue = 6;
// Whether a value can be searched for at all.
bool is_searchable(std::string_view value);

class Automaton {
 public:
  // exhausted: more than kMostStates are needed.
  static Result<std::shared_ptr<const Automaton>> make(std::span<const Value> values);
  ~Automaton();
  Automaton(const Automaton&) = delete;
  Automaton& operator=(const Automaton&) = delete;

  static constexpr size_t kMostStates = 4 << 20;  // some 100 MB: 100 KB of values

  using State = uint32_t;  // 0: nothing has begun
  State step(State state, char c) const;
  // How many of the last bytes may be the beginning of a spelling.
  uint32_t depth(State state) const { return nodes_[state].depth; }

  struct Found {
    uint32_t value;  // an index for id_of()
    Form form;
    uint32_t length;
  };
  // Calls `report(Found)` for each spelling that ends here; `end` is behind its last byte, and the bytes before it are
  // still there.
  template <typename Report>
  void ends(State state, const char* end, Report report) const {
    for (State s = nodes_[state].spelling != kNone ? state : nodes_[state].shorter; s; s = nodes_[s].shorter)
      for (uint32_t i = nodes_[s].spelling; i != kNone; i = spellings_[i].next)
        if (same(spellings_[i], end)) report(Found{spellings_[i].value, spellings_[i].form, spellings_[i].length});
  }
  // The same for what comes next: nothing goes on from the end of the longest spelling.
  State settled(State state) const {
    while (state && nodes_[state].count == 0) state = nodes_[state].fail;
    return state;
  }
  bool any_ends(State state) const { return nodes_[state].spelling != kNone || nodes_[state].shorter; }

  // The next place at or after `at` where a spelling may begin, as far as `size` lets one see: from `size - window() +
  // 1` on it cannot be told.
  size_t next_beginning(const char* bytes, size_t at, size_t size) const;
  size_t window() const { return window_; }

  const std::string& id_of(uint32_t value) const { return ids_[value]; }
  const std::vector<std::string>& unsearched() const { return unsearched_; }
  bool empty() const { return spellings_.empty(); }
  size_t longest() const { return longest_; }
  size_t states() const { return nodes_.size(); }

 private:
  Automaton() = default;
  static constexpr uint32_t kNone = ~uint32_t{0};
  struct Node {
    uint32_t edges = 0;  // of edge_bytes_ and edge_to_; while it is built: the first child
    uint16_t count = 0;
    State fail = 0;
    State shorter = 0;          // the longest proper suffix with a spelling; 0: none
    uint32_t spelling = kNone;  // the first one of this very state
    uint32_t depth = 0;
  };
  struct Entry {
    uint32_t value, length;
    uint32_t bytes;  // where it stands in texts_ and loose_
    uint32_t next;   // another one with the same letters
    Form form;
  };
  struct Builder;
  bool same(const Entry& entry, const char* end) const;
  State child(State state, uint8_t folded) const;
  void prefilter(const std::vector<std::string_view>& texts);
  size_t skip_ahead(const char* bytes, size_t at, size_t size) const;
  bool may_begin(const char* at) const;

  std::vector<Node> nodes_;
  std::vector<uint8_t> edge_bytes_;
  std::vector<State> edge_to_;
  std::array<State, 256> root_{};
  std::vector<Entry> spellings_;
  std::string texts_, loose_;
  std::vector<std::string> ids_, unsearched_;
  std::vector<uint8_t> skip_;    // by block: how far the window can move
  std::vector<uint64_t> first_;  // bits, by the first bytes of a spelling
  int skip_shift_ = 0;
  size_t window_ = 1, longest_ = 0;
};

}  // namespace isola::scan
