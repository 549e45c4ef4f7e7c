// A stream on its way out, in pieces of any size: what is found is blotted out with '*', byte for byte, wherever the
// borders of the pieces are.
//
//   Stream stream(automaton);
//   std::string out;
//   stream.feed(piece, out, hits);          // what is decided; what may be the beginning of a value waits inside
//   stream.idle(out);                       // nothing came for a moment: lets go of a few bytes (see below)
//   stream.end(out);                        // that was all
//
// In sum as many bytes come out as went in, and none waits longer than the longest spelling, less one byte.
//
// Whoever keeps the bytes himself wants to know only how many of them may go on, and blots out what `hits` names:
//
//   stream.feed(piece, hits);
//   send(kept, stream.decided());           // from the beginning of the stream; beginnings() of them may still be one
//
// idle() is for people at a terminal: a prompt whose last letter happens to be the first of a value must appear. It
// lets go of at most kIdleMost bytes of a beginning; a writer that pauses after each byte does not get a value past us,
// only those first bytes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scan/automaton.h"

namespace isola::scan {

struct Hit {
  uint32_t value = 0;  // automaton->id_of(value)
  Form form = Form::raw;
  uint64_t offset = 0;  // of its first byte, in the whole stream
  uint32_t length = 0;
  bool operator==(const Hit&) const = default;
};

inline constexpr uint32_t kIdleMost = 3;
static_assert(kIdleMost < kShortestValue);

class Stream {
 public:
  explicit Stream(std::shared_ptr<const Automaton> automaton) : automaton_(std::move(automaton)) {}
  ~Stream();
  Stream(Stream&&) = default;
  Stream& operator=(Stream&&) = default;

  // Appends to `out` and `hits`; a hit is told when its last byte has come.
  void feed(std::string_view bytes, std::string& out, std::vector<Hit>& hits) { take(bytes, &out, hits); }
  void idle(std::string& out) { let_go(kIdleMost, &out); }
  void end(std::string& out) { finish(&out); }

  // Another automaton from here on. What may be a beginning is looked at anew by it, also the bytes of that which
  // idle() let go of; none goes out twice. Where one of its values lies in them altogether, it is told (again).
  void renew(std::shared_ptr<const Automaton> automaton, std::string& out, std::vector<Hit>& hits);

  void feed(std::string_view bytes, std::vector<Hit>& hits) { take(bytes, nullptr, hits); }
  void idle() { let_go(kIdleMost, nullptr); }
  // All that waits, and what follows is still looked at as its continuation: for one who does not show it as it is.
  void let_go() { let_go(held_.size(), nullptr); }
  void end() { finish(nullptr); }

  size_t held() const { return held_.size(); }
  uint64_t seen() const { return seen_; }
  uint64_t decided() const { return seen_ - waiting_; }
  // How many of the decided bytes, the last ones, idle() or let_go() gave away though a value may begin with them.
  size_t beginnings() const { return held_.size() - waiting_; }

 private:
  void take(std::string_view bytes, std::string* out, std::vector<Hit>& hits);
  void take_piece(std::string_view bytes, std::string* out, std::vector<Hit>& hits);
  // `all`: what was held and what came, searched; `start`: the first of it that has not gone out.
  void decide(std::string_view all, size_t start, uint64_t offset, std::string* out);
  void let_go(size_t most, std::string* out);
  void finish(std::string* out);
  // Looks through `all` from `from` on; what stands before it was looked at already.
  void look(std::string_view all, size_t from, uint64_t offset, std::vector<Hit>& hits);
  void blot(char* bytes, size_t size, uint64_t offset);

  struct Range {
    uint64_t from, to;
  };
  std::shared_ptr<const Automaton> automaton_;
  Automaton::State state_ = 0;
  uint64_t seen_ = 0;         // bytes that came
  std::string held_;          // the last of them, as they came
  size_t waiting_ = 0;        // of held_: how many at its end have not gone out
  std::vector<Range> blots_;  // that reach into what has not gone out
};

}  // namespace isola::scan
