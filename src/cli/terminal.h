// The caller's own terminal and streams, for commands that show a remote one through them.
//
//   RawTerminal raw;                          // until it goes: no echo, no line editing, Ctrl-C is a byte
//   if (auto size = terminal_size()) …
//   if (!put_out(STDOUT_FILENO, bytes)) …     // nobody reads any more
#pragma once

#include <termios.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.h"

namespace isola::cli {

class RawTerminal {
 public:
  RawTerminal();
  ~RawTerminal();
  RawTerminal(const RawTerminal&) = delete;
  RawTerminal& operator=(const RawTerminal&) = delete;

 private:
  termios saved_{};
  bool active_ = false;
};

struct TerminalSize {
  uint16_t rows = 0, cols = 0;
};
std::optional<TerminalSize> terminal_size();

// Everything, even where somebody made the descriptor non-blocking.
Result<void> put_out(int fd, std::string_view bytes);

}  // namespace isola::cli
