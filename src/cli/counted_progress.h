// How far a long row of steps is, on standard error: on a terminal one line that is written over ("31/259 socket-alg"),
// elsewhere a line about every ten seconds, so that a log shows that it lives.
//
//   CountedProgress progress(steps.size());
//   for (auto& step : steps) {
//     progress.begin(step.name);
//     …
//     progress.wipe();                        // before anything else is printed
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace isola::cli {

class CountedProgress {
 public:
  using Clock = std::chrono::steady_clock;
  explicit CountedProgress(size_t total);
  // For tests: another place to write to, and another clock.
  CountedProgress(size_t total, bool terminal, std::function<void(const std::string&)> write,
                  std::function<Clock::time_point()> now);
  ~CountedProgress() { wipe(); }
  CountedProgress(const CountedProgress&) = delete;
  CountedProgress& operator=(const CountedProgress&) = delete;
  void begin(const std::string& name);
  void wipe();

 private:
  size_t total_, done_ = 0;
  bool terminal_, visible_ = false;
  std::function<void(const std::string&)> write_;
  std::function<Clock::time_point()> now_;
  Clock::time_point told_;
};

}  // namespace isola::cli
