#include "scan/stream.h"

#include <string.h>

#include <algorithm>
#include <cstring>

namespace isola::scan {

namespace {
// A beginning that is shorter is looked for by the filter again: cheaper than to follow it byte by byte. A longer one
// is followed to its end, so that a stream of nothing but beginnings costs no more than a constant for each byte.
constexpr uint32_t kShallow = 4;
constexpr size_t kJoined = 4096;  // at least, and as much as was held: so it stays a constant for each byte
}  // namespace

Stream::~Stream() { ::explicit_bzero(held_.data(), held_.size()); }

void Stream::look(std::string_view all, size_t from, uint64_t offset, std::vector<Hit>& hits) {
  const Automaton& automaton = *automaton_;
  Automaton::State state = state_;
  size_t i = from;
  while (i < all.size()) {
    size_t begin = i - automaton.depth(state);
    if (automaton.depth(state) < kShallow) {
      size_t next = automaton.next_beginning(all.data(), begin, all.size());
      if (next != begin) {
        begin = i = next;
        state = 0;
      }
    }
    do {
      state = automaton.step(state, all[i++]);
      if (!automaton.any_ends(state)) continue;
      automaton.ends(state, all.data() + i, [&](const Automaton::Found& found) {
        uint64_t end = offset + i;
        hits.push_back({found.value, found.form, end - found.length, found.length});
        blots_.push_back({end - found.length, end});
      });
      state = automaton.settled(state);
    } while (i < all.size() && (i - automaton.depth(state) == begin || automaton.depth(state) >= kShallow));
  }
  state_ = state;
}

void Stream::blot(char* bytes, size_t size, uint64_t offset) {
  for (const Range& range : blots_) {
    uint64_t from = std::max(range.from, offset), to = std::min(range.to, offset + size);
    if (from < to) std::memset(bytes + (from - offset), '*', to - from);
  }
}

void Stream::take(std::string_view bytes, std::string* out, std::vector<Hit>& hits) {
  if (automaton_->empty()) {
    seen_ += bytes.size();
    if (out) out->append(bytes);
    return;
  }
  // Only a beginning is joined with what was held: after that there is mostly nothing to join any more.
  for (size_t step; !held_.empty() && bytes.size() > (step = std::max(kJoined, held_.size()));
       bytes.remove_prefix(step))
    take_piece(bytes.substr(0, step), out, hits);
  take_piece(bytes, out, hits);
}

void Stream::take_piece(std::string_view bytes, std::string* out, std::vector<Hit>& hits) {
  const size_t before = held_.size();
  std::string joined;
  std::string_view all = bytes;
  if (before) {
    joined.reserve(before + bytes.size());
    joined.append(held_).append(bytes);
    all = joined;
  }
  const uint64_t offset = seen_ - before;
  look(all, before, offset, hits);
  seen_ += bytes.size();
  // What idle() let go of may still be the beginning of something: it is kept, and not sent again.
  decide(all, before - waiting_, offset, out);
  if (before) ::explicit_bzero(joined.data(), before);
}

void Stream::decide(std::string_view all, size_t start, uint64_t offset, std::string* out) {
  const size_t decided = all.size() - automaton_->depth(state_);
  const size_t end = std::max(start, decided);
  if (out) {
    const size_t at = out->size();
    out->append(all.substr(start, end - start));
    blot(out->data() + at, end - start, offset + start);
  }
  waiting_ = all.size() - end;
  std::string rest(all.substr(decided));
  ::explicit_bzero(held_.data(), held_.size());
  held_ = std::move(rest);
  std::erase_if(blots_, [&](const Range& range) { return range.to <= offset + end; });
}

void Stream::renew(std::shared_ptr<const Automaton> automaton, std::string& out, std::vector<Hit>& hits) {
  automaton_ = std::move(automaton);
  state_ = 0;
  std::string all = held_;
  const uint64_t offset = seen_ - all.size();
  if (!automaton_->empty()) look(all, 0, offset, hits);
  decide(all, all.size() - waiting_, offset, &out);
  ::explicit_bzero(all.data(), all.size());
}

void Stream::let_go(size_t most, std::string* out) {
  const size_t gone = held_.size() - waiting_;
  if (gone >= most) return;
  const size_t now = std::min<size_t>(waiting_, most - gone);
  if (out) {
    const size_t at = out->size();
    out->append(held_, gone, now);
    blot(out->data() + at, now, seen_ - waiting_);
  }
  waiting_ -= now;
}

void Stream::finish(std::string* out) {
  if (out) {
    const size_t at = out->size();
    out->append(held_, held_.size() - waiting_);
    blot(out->data() + at, waiting_, seen_ - waiting_);
  }
  ::explicit_bzero(held_.data(), held_.size());
  held_.clear();
  waiting_ = 0;
  state_ = 0;
  blots_.clear();
}

}  // namespace isola::scan
