#include "cli/terminal.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace isola::cli {

RawTerminal::RawTerminal() {
  if (::tcgetattr(STDIN_FILENO, &saved_) < 0) return;
  termios raw = saved_;
  ::cfmakeraw(&raw);
  active_ = ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) == 0;
}

RawTerminal::~RawTerminal() {
  if (active_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_);
}

std::optional<TerminalSize> terminal_size() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row == 0) return std::nullopt;
  return TerminalSize{size.ws_row, size.ws_col};
}

Result<void> put_out(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EAGAIN) {
      pollfd room{fd, POLLOUT, 0};
      ::poll(&room, 1, -1);
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot write the output");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

}  // namespace isola::cli
