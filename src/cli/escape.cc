#include "cli/escape.h"

namespace isola::cli {

std::string EscapeScanner::feed(std::string_view typed) {
  std::string out;
  for (char c : typed) {
    if (left_) break;
    if (tilde_) {
      tilde_ = false;
      if (c == '.') {
        left_ = true;
        break;
      }
      out += '~';
      line_start_ = false;
      if (c == '~') continue;
    } else if (c == '~' && line_start_) {
      tilde_ = true;  // held back until it is clear what it is
      continue;
    }
    out += c;
    line_start_ = c == '\r' || c == '\n';
  }
  return out;
}

}  // namespace isola::cli
