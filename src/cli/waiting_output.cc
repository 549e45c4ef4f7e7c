#include "cli/waiting_output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace isola::cli {

void WaitingOutput::add(int fd, std::string_view bytes) {
  if (!bytes.empty()) row_.push_back({fd, std::string(bytes)});
}

Result<bool> WaitingOutput::write_some() {
  bool some = false;
  while (!row_.empty()) {
    auto& piece = row_.front();
    // The descriptor is shared with whoever started us, so it is not ours to make it non-blocking. Where there is room,
    // there is room for this much.
    pollfd room{piece.fd, POLLOUT, 0};
    if (::poll(&room, 1, 0) <= 0) return some;
    ssize_t n =
        ::write(piece.fd, piece.bytes.data() + piece.at, std::min<size_t>(piece.bytes.size() - piece.at, PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return some;
    if (n < 0) return sys_error("cannot write the output");
    some = true;
    piece.at += static_cast<size_t>(n);
    if (piece.at == piece.bytes.size()) row_.pop_front();
  }
  return some;
}

}  // namespace isola::cli
