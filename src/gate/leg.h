// One end of a connection that is looked into: bytes to and from a socket that never blocks, in clear (PlainLeg) or
// through TLS (tls_leg.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace isola::gate {

// A socket as the loop knows it (edges, so that whoever meets EAGAIN must say so).
struct Wire {
  Fd fd;
  bool readable = false, writable = false;
  bool over = false;  // nothing more will come, whatever is still to be read
  bool urgent = false;
  // Less than there was room for: there is no more, and what comes next is an event. Not so at the end, which would
  // be no news any more, nor with a mark of urgent data, where the kernel stops.
  void was_read(size_t bytes, size_t room) {
    if (bytes < room && !over && !urgent) readable = false;
  }
};

// What a leg moves is counted, and may have to wait for tokens.
class Meter {
 public:
  virtual ~Meter() = default;
  virtual size_t room() = 0;  // 0: none now, and whoever asked is called again when there is
  virtual void was_read(size_t bytes) = 0;
  virtual void was_written(size_t bytes) = 0;
};

enum class Io : uint8_t { moved, blocked, ended, failed };
struct Moved {
  Io how = Io::blocked;
  size_t bytes = 0;
};

// Raw bytes: first those that were read before there was a leg, then the socket's.
class RawWire {
 public:
  RawWire(Wire& wire, Meter& meter, std::string first = "") : wire_(wire), meter_(meter), first_(std::move(first)) {}
  Moved read(char* to, size_t size);
  Moved write(const char* from, size_t size);
  Wire& wire() { return wire_; }

 private:
  Wire& wire_;
  Meter& meter_;
  std::string first_;
  size_t first_at_ = 0;
};

class Leg {
 public:
  virtual ~Leg() = default;
  virtual Moved read(char* to, size_t size) = 0;
  // What was not taken is offered again later, with more behind it or not.
  virtual Moved write(const char* from, size_t size) = 0;
  // Nothing more will be written.
  virtual void finish() = 0;
  virtual std::string why() const { return ""; }  // it failed
};

class PlainLeg : public Leg {
 public:
  PlainLeg(Wire& wire, Meter& meter, std::string first = "") : raw_(wire, meter, std::move(first)) {}
  Moved read(char* to, size_t size) override { return raw_.read(to, size); }
  Moved write(const char* from, size_t size) override { return raw_.write(from, size); }
  void finish() override;

 private:
  RawWire raw_;
};

}  // namespace isola::gate
