// How long work tells whoever waits for it where it is.
#pragma once

#include <chrono>
#include <functional>
#include <string_view>

namespace isola::image {

struct ProgressStep {
  std::string_view phase;               // "packages", "node", "tidy", "pack", "digest", "waiting"
  std::string_view detail;              // one line, may be empty; printable
  int percent = -1;                     // within the phase; -1: not known
  std::chrono::milliseconds elapsed{};  // since the whole work began
};

// Called at every change and about once a second in between. May be empty.
using Progress = std::function<void(const ProgressStep&)>;

}  // namespace isola::image
