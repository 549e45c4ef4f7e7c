// Where a template is being made, and how its making is reported.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "image/progress.h"

namespace isola::image {

struct BuildPlace {
  std::string folder;  // private to this build; gets `root`, `log` and scratch files
  std::string root() const { return folder + "/root"; }
  std::string log() const { return folder + "/log"; }
};

// Reports one phase with elapsed time; a thin layer over Progress that remembers when the work began.
class Reporter {
 public:
  explicit Reporter(const Progress& progress) : progress_(progress), start_(std::chrono::steady_clock::now()) {}
  void operator()(std::string_view phase, std::string_view detail = {}, int percent = -1) const {
    if (!progress_) return;
    auto elapsed = std::chrono::steady_clock::now() - start_;
    progress_({phase, detail, percent, std::chrono::duration_cast<std::chrono::milliseconds>(elapsed)});
  }

 private:
  const Progress& progress_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace isola::image
