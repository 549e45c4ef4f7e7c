#include "cli/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/units.h"
#include "cli/table.h"

namespace isola::cli {

using namespace std::chrono_literals;

std::string progress_text(const std::string& name, uint64_t done, std::optional<uint64_t> total,
                          std::chrono::milliseconds elapsed) {
  constexpr size_t kWidth = 24;
  auto ms = static_cast<uint64_t>(std::max<int64_t>(elapsed.count(), 1));
  uint64_t speed = done * 1000 / ms;
  if (!total) return fmt::format("{}  {}  {}/s", name, format_size(done), format_size(speed));
  double part = *total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(*total));
  auto filled = static_cast<size_t>(part * kWidth);
  std::string bar = std::string(filled, '=') + (filled < kWidth ? ">" : "");
  bar.resize(kWidth, ' ');
  std::string text = fmt::format("{}  [{}]  {}%  {} of {}  {}/s", name, bar, static_cast<int>(part * 100),
                                 format_size(done), format_size(*total), format_size(speed));
  if (speed > 0 && *total > done) text += "  " + short_span(static_cast<int64_t>((*total - done) * 1000 / speed));
  return text;
}

ProgressBar::ProgressBar(std::string name, std::optional<uint64_t> total)
    : name_(shown(name)), total_(total), terminal_(::isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (visible_) std::fputs("\r\033[K", stderr);
}

void ProgressBar::add(uint64_t bytes) {
  done_ += bytes;
  if (!terminal_) return;
  auto now = Clock::now();
  if (now - begun_ < 1s || now - shown_ < 100ms) return;
  shown_ = now;
  visible_ = true;
  auto elapsed = std::chrono::duration_cast<std::chrono::milliseconds>(now - begun_);
  std::fprintf(stderr, "\r\033[K%s", progress_text(name_, done_, total_, elapsed).c_str());
}

}  // namespace isola::cli
