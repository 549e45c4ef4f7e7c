#include "cli/counted_progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

namespace isola::cli {

namespace {
constexpr auto kTellEvery = std::chrono::seconds(10);
}

CountedProgress::CountedProgress(size_t total)
    : CountedProgress(
          total, ::isatty(STDERR_FILENO) != 0, [](const std::string& text) { std::fputs(text.c_str(), stderr); },
          Clock::now) {}

CountedProgress::CountedProgress(size_t total, bool terminal, std::function<void(const std::string&)> write,
                                 std::function<Clock::time_point()> now)
    : total_(total), terminal_(terminal), write_(std::move(write)), now_(std::move(now)), told_(now_()) {}

void CountedProgress::begin(const std::string& name) {
  ++done_;
  const std::string text = fmt::format("{}/{} {}", done_, total_, name);
  if (terminal_) {
    write_("\r\033[K" + text);
    visible_ = true;
  } else if (auto now = now_(); now - told_ >= kTellEvery) {
    write_(text + "\n");
    told_ = now;
  }
}

void CountedProgress::wipe() {
  if (std::exchange(visible_, false)) write_("\r\033[K");
}

}  // namespace isola::cli
