// A transfer's progress on standard error: only on a terminal, and only when it takes more than a second.
//
//   ProgressBar bar("data.bin", size);
//   bar.add(n);                             // for each piece
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace isola::cli {

// The line: `data.bin  [=====>    ]  52%  5.2 MiB of 10.0 MiB  1.3 MiB/s  4s`; without a total, what is known.
std::string progress_text(const std::string& name, uint64_t done, std::optional<uint64_t> total,
                          std::chrono::milliseconds elapsed);

class ProgressBar {
 public:
  ProgressBar(std::string name, std::optional<uint64_t> total);
  ~ProgressBar();  // wipes it
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;
  void add(uint64_t bytes);
  void total(uint64_t bytes) { total_ = bytes; }

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  std::optional<uint64_t> total_;
  uint64_t done_ = 0;
  Clock::time_point begun_ = Clock::now(), shown_;
  bool terminal_, visible_ = false;
};

}  // namespace isola::cli
