// A port of this machine that is a port in a sandbox, for HTTP and WebSockets: each connection's first head gets the
// headers that name the sandbox, its port and its token; what follows passes as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "http/blocking_stream.h"

namespace isola::cli {

struct Forward {
  http::Url server;
  std::string sandbox, token;
  uint16_t port = 0;
  bool json = false;  // where it listens is said as JSON
};

// The head of a request with our headers in it. One request per connection: unless it is an upgrade, it says so.
std::string forwarded_head(std::string_view head, const Forward& forward);

// Listens on 127.0.0.1:local (0: any free port), says where, and forwards until SIGINT, SIGTERM or SIGHUP.
Result<void> forward_port(const Forward& forward, uint16_t local);

}  // namespace isola::cli
