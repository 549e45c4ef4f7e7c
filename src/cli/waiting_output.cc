#include "cli/waiting_output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace isola::cli {

void WaitingOutput::add(int fd, std::string_view bytes) {
  if (!bytes.empty()) row_.push_back({fd, std::string(bytes)});
}

// A terminal with room for one byte says that it can be written to, and keeps whoever writes more until it took all of
// it. Opened anew it can be told not to: that is then our descriptor alone.
int WaitingOutput::door(int fd) {
  auto [at, first] = doors_.try_emplace(fd);
  if (first && ::isatty(fd))
    at->second =
        Fd(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  return at->second ? at->second.get() : fd;
}

Result<bool> WaitingOutput::write_some() {
  bool some = false;
  while (!row_.empty()) {
    auto& piece = row_.front();
    // The descriptor is shared with whoever started us, so it is not ours to make it non-blocking. Where a pipe has
    // room, it has room for this much.
    const int fd = door(piece.fd);
    pollfd room{fd, POLLOUT, 0};
    if (::poll(&room, 1, 0) <= 0) return some;
    ssize_t n = ::write(fd, piece.bytes.data() + piece.at, std::min<size_t>(piece.bytes.size() - piece.at, PIPE_BUF));
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
