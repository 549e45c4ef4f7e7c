#include "scan/automaton.h"

#include <string.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>

namespace isola::scan {

namespace {

constexpr size_t kBlock = 3;          // bytes of a block of the prefilter
constexpr size_t kWidest = 32;        // of its window
constexpr uint32_t kCase = 0x202020;  // upper and lower case fall together (and some signs: it is only a filter)

constexpr auto kFold = [] {
  std::array<uint8_t, 256> table{};
  for (size_t i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(i >= 'A' && i <= 'Z' ? i | 0x20 : i);
  return table;
}();

uint8_t fold(char c) { return kFold[static_cast<uint8_t>(c)]; }

uint32_t block_at(const char* at) {
  uint32_t block = 0;
  std::memcpy(&block, at, kBlock);
  return block | kCase;
}

// Four bytes at once where there are four: a load of three is two.
uint32_t block_before(const char* end) {
  uint32_t word;
  std::memcpy(&word, end - 4, 4);
  return (word >> 8) | kCase;
}

uint32_t slot_of(uint32_t block, int shift) { return (block * 0x9e3779b1u) >> shift; }

// Of the first four bytes of a spelling, as a bit of a set of 2^16.
uint32_t first_slot(const char* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return slot_of(word | 0x20202020, 16);
}

template <typename Bytes>
void wipe(Bytes& bytes) {
  if (!bytes.empty()) ::explicit_bzero(bytes.data(), bytes.size() * sizeof(bytes[0]));
}

}  // namespace

bool is_searchable(std::string_view value) {
  return value.size() >= kShortestValue && value.find_first_not_of(value[0]) != std::string_view::npos;
}

// The trie while it grows: children as a map of a map would cost too much, so siblings are a list.
struct Automaton::Builder {
  struct Sibling {
    State to;
    uint32_t next;
    uint8_t byte;
  };
  std::vector<Sibling> siblings;
  std::vector<uint32_t> first = {kNone};  // of each state

  State find(State state, uint8_t byte) const {
    for (uint32_t i = first[state]; i != kNone; i = siblings[i].next)
      if (siblings[i].byte == byte) return siblings[i].to;
    return 0;
  }
  State add(State state, uint8_t byte) {
    auto to = static_cast<State>(first.size());
    siblings.push_back({to, first[state], byte});
    first[state] = static_cast<uint32_t>(siblings.size() - 1);
    first.push_back(kNone);
    return to;
  }
};

Result<std::shared_ptr<const Automaton>> Automaton::make(std::span<const Value> values) {
  std::shared_ptr<Automaton> made(new Automaton);
  Automaton& a = *made;
  Builder trie;
  a.nodes_.resize(1);
  std::vector<std::pair<size_t, size_t>> pieces;
  for (const Value& value : values) {
    if (!is_searchable(value.bytes)) {
      a.unsearched_.push_back(value.id);
      continue;
    }
    auto index = static_cast<uint32_t>(a.ids_.size());
    a.ids_.push_back(value.id);
    for (Spelling& spelling : spellings(value.bytes)) {
      State state = 0;
      for (char c : spelling.bytes) {
        State next = trie.find(state, fold(c));
        if (!next) {
          if (a.nodes_.size() >= kMostStates)
            return fail(Code::exhausted, "the values to search for are too long, in sum");
          next = trie.add(state, fold(c));
          a.nodes_.push_back({.depth = a.nodes_[state].depth + 1});
        }
        state = next;
      }
      auto at = static_cast<uint32_t>(a.texts_.size());
      a.texts_ += spelling.bytes;
      a.loose_ += spelling.loose;
      auto length = static_cast<uint32_t>(spelling.bytes.size());
      a.spellings_.push_back({index, length, at, a.nodes_[state].spelling, spelling.form});
      a.nodes_[state].spelling = static_cast<uint32_t>(a.spellings_.size() - 1);
      a.longest_ = std::max<size_t>(a.longest_, length);
      wipe(spelling.bytes);
    }
  }
  // Edges side by side, then the links to shorter suffixes, breadth first.
  for (State state = 0; state < a.nodes_.size(); ++state) {
    a.nodes_[state].edges = static_cast<uint32_t>(a.edge_bytes_.size());
    for (uint32_t i = trie.first[state]; i != kNone; i = trie.siblings[i].next) {
      a.edge_bytes_.push_back(trie.siblings[i].byte);
      a.edge_to_.push_back(trie.siblings[i].to);
      ++a.nodes_[state].count;
      if (state == 0) a.root_[trie.siblings[i].byte] = trie.siblings[i].to;
    }
  }
  std::deque<State> queue = {0};
  while (!queue.empty()) {
    State state = queue.front();
    queue.pop_front();
    const Node& node = a.nodes_[state];
    for (uint32_t i = node.edges; i < node.edges + node.count; ++i) {
      State to = a.edge_to_[i];
      uint8_t byte = a.edge_bytes_[i];
      State fail = state ? a.nodes_[state].fail : 0;
      State match = 0;
      while (state && !(match = a.child(fail, byte)) && fail) fail = a.nodes_[fail].fail;
      a.nodes_[to].fail = match;
      a.nodes_[to].shorter = a.nodes_[match].spelling != kNone ? match : a.nodes_[match].shorter;
      queue.push_back(to);
    }
  }
  std::vector<std::string_view> texts;
  for (const Entry& entry : a.spellings_) texts.push_back(std::string_view(a.texts_).substr(entry.bytes, entry.length));
  a.prefilter(texts);
  wipe(trie.siblings);
  return made;
}

Automaton::~Automaton() {
  wipe(texts_);
  wipe(edge_bytes_);
  wipe(skip_);
  wipe(first_);
}

void Automaton::prefilter(const std::vector<std::string_view>& texts) {
  if (texts.empty()) return;
  window_ = kWidest;
  for (std::string_view text : texts) window_ = std::min(window_, text.size());
  // Sparse enough that a block of ordinary text is seldom taken for one of ours; small enough for the near caches.
  size_t blocks = texts.size() * (window_ - kBlock + 1);
  size_t size = std::clamp<size_t>(std::bit_ceil(blocks * 8), 8192, 1 << 18);
  skip_shift_ = 32 - std::countr_zero(size);
  skip_.assign(size, static_cast<uint8_t>(window_ - kBlock + 1));
  first_.assign((1 << 16) / 64, 0);
  for (std::string_view text : texts) {
    uint32_t slot = first_slot(text.data());
    first_[slot / 64] |= uint64_t{1} << (slot % 64);
    for (size_t end = kBlock; end <= window_; ++end) {
      uint8_t& skip = skip_[slot_of(block_at(text.data() + end - kBlock), skip_shift_)];
      skip = std::min(skip, static_cast<uint8_t>(window_ - end));
    }
  }
}

// Each look at the table waits for the one before it, which says where to look: four places of the stream are gone
// through at a time, so that the processor has something to do meanwhile. Gives where the first of the four stretches
// that it has gone through end; nothing: there may be a beginning in them.
size_t Automaton::skip_ahead(const char* bytes, size_t at, size_t size) const {
  constexpr size_t kLanes = 4, kStretch = 1024;
  const uint8_t* skip = skip_.data();
  const int shift = skip_shift_;
  const size_t window = window_;
  while (size - at >= kLanes * kStretch + window) {
    const char* here[kLanes];
    const char* end[kLanes];
    for (size_t i = 0; i < kLanes; ++i) {
      here[i] = bytes + at + i * kStretch + window;
      end[i] = here[i] + kStretch;
    }
    auto go = [&](size_t i) -> unsigned {  // no bool: all four are to be done, whatever the first ones say
      size_t far = skip[slot_of(block_before(here[i]), shift)];
      if (far == 0) [[unlikely]] {
        if (may_begin(here[i] - window)) return 0;
        far = 1;
      }
      here[i] += far;
      return 1;
    };
    while (here[0] < end[0] && here[1] < end[1] && here[2] < end[2] && here[3] < end[3])
      if (!(go(0) & go(1) & go(2) & go(3))) return at;
    for (size_t i = 0; i < kLanes; ++i)
      while (here[i] < end[i])
        if (!go(i)) return at;
    at = static_cast<size_t>(here[kLanes - 1] - bytes) - window;
  }
  return at;
}

size_t Automaton::next_beginning(const char* bytes, size_t at, size_t size) const {
  const size_t window = window_;
  if (window > size || at > size - window) return at;
  at = skip_ahead(bytes, at, size);
  const uint8_t* skip = skip_.data();
  const char* here = bytes + at + window;
  const char* last = bytes + size;
  while (here <= last) {
    uint8_t far = skip[slot_of(block_before(here), skip_shift_)];
    if (far == 0) {
      if (may_begin(here - window)) break;
      far = 1;
    }
    here += far;
  }
  return static_cast<size_t>(here - bytes) - window;
}

bool Automaton::may_begin(const char* at) const {
  uint32_t slot = first_slot(at);
  return first_[slot / 64] >> (slot % 64) & 1;
}

Automaton::State Automaton::child(State state, uint8_t folded) const {
  if (state == 0) return root_[folded];
  const Node& node = nodes_[state];
  const uint8_t* bytes = edge_bytes_.data() + node.edges;
  for (uint16_t i = 0; i < node.count; ++i)
    if (bytes[i] == folded) return edge_to_[node.edges + i];
  return 0;
}

Automaton::State Automaton::step(State state, char c) const {
  const uint8_t folded = fold(c);
  for (;;) {
    if (State next = child(state, folded)) return next;
    if (state == 0) return 0;
    state = nodes_[state].fail;
  }
}

bool Automaton::same(const Entry& entry, const char* end) const {
  const char* text = texts_.data() + entry.bytes;
  const char* loose = loose_.data() + entry.bytes;
  const char* found = end - entry.length;
  // The letters are the same already; here it is about their case.
  for (uint32_t i = 0; i < entry.length; ++i)
    if (found[i] != text[i] && !loose[i]) return false;
  return true;
}

}  // namespace isola::scan
