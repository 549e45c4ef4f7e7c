// What a command wrote, kept for one JSON result at its end. A flood costs bounded memory: what is beyond the bound is
// counted, not kept, and the command is not held up.
//
//   CollectedOutput output;
//   output.add(CollectedOutput::out, bytes);
//   json result = output.result();      // fields named as in the API's CommandResult and RunResult
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace isola::cli {

class CollectedOutput {
 public:
  enum Stream { out, err };
  static constexpr size_t kMost = size_t{16} << 20;  // of each

  void add(Stream stream, std::string_view bytes);
  void add_lost(uint64_t bytes) { lost_ += bytes; }  // that never came
  nlohmann::json result() const;

 private:
  struct Kept {
    std::string text;
    uint64_t dropped = 0;
  };
  Kept kept_[2];
  uint64_t lost_ = 0;
};

}  // namespace isola::cli
