// The way out of a remote terminal, as ssh has it: `~.` at the beginning of a line leaves, `~~` is one tilde.
//
//   EscapeScanner scanner;
//   std::string keys = scanner.feed(typed);     // what goes to the other side
//   if (scanner.left()) …
#pragma once

#include <string>
#include <string_view>

namespace isola::cli {

class EscapeScanner {
 public:
  std::string feed(std::string_view typed);
  bool left() const { return left_; }

 private:
  bool line_start_ = true, tilde_ = false, left_ = false;
};

}  // namespace isola::cli
