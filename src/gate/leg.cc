#include "gate/leg.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace isola::gate {

Moved RawWire::read(char* to, size_t size) {
  if (first_at_ < first_.size()) {
    size_t take = std::min(size, first_.size() - first_at_);
    std::memcpy(to, first_.data() + first_at_, take);
    first_at_ += take;
    if (first_at_ == first_.size()) first_ = std::string(), first_at_ = 0;
    return {Io::moved, take};
  }
  if (!wire_.readable) return {Io::blocked};
  size = std::min(size, meter_.room());
  if (size == 0) return {Io::blocked};
  for (;;) {
    ssize_t n = ::recv(wire_.fd.get(), to, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return wire_.readable = false, Moved{Io::blocked};
    if (n < 0) return {Io::failed};
    if (n == 0) return {Io::ended};
    wire_.was_read(static_cast<size_t>(n), size);
    meter_.was_read(static_cast<size_t>(n));
    return {Io::moved, static_cast<size_t>(n)};
  }
}

Moved RawWire::write(const char* from, size_t size) {
  if (!wire_.writable) return {Io::blocked};
  for (;;) {
    ssize_t n = ::send(wire_.fd.get(), from, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return wire_.writable = false, Moved{Io::blocked};
    if (n < 0) return {Io::failed};
    meter_.was_written(static_cast<size_t>(n));
    return {Io::moved, static_cast<size_t>(n)};
  }
}

void PlainLeg::finish() { ::shutdown(raw_.wire().fd.get(), SHUT_WR); }

}  // namespace isola::gate
