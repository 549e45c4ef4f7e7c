// Whose commands ran when. What the gate tells comes up to a second late: its command may be over by then, and another
// one's run. So those that are over are remembered for a while.
//
//   uint64_t born = spans.begin("task-7", now);
//   spans.end("task-7", now, born);
//   spans.during(when, when);  // {"task-7"}, also when "task-8" has begun since
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "base/clock.h"

namespace isola::sandbox {

class TaskSpans {
 public:
  using Millis = int64_t;
  // One command more, or less, of that task. What began before all were over ends nothing of who came since: `born` is
  // what begin() gave.
  uint64_t begin(const std::string& task, Millis now);
  void end(const std::string& task, Millis now, uint64_t born);
  // All of them are over.
  void end_all(Millis now);
  uint64_t generation() const { return generation_; }  // of those that begin now
  // Each task once, in the order of their names. Where none ran: the one that ended last, if that was shortly before
  // (its connections are closed when it is gone).
  std::vector<std::string> during(Millis from, Millis to) const;

  static constexpr Millis kShortly = 1000;
  static constexpr size_t kKept = 64;  // that are over

 private:
  struct Span {
    std::string task;
    Millis since = 0, until = 0;
    int commands = 0;
  };
  void keep(Span span, Millis now);
  uint64_t generation_ = 0;
  std::vector<Span> running_;
  std::deque<Span> over_;
};

}  // namespace isola::sandbox
