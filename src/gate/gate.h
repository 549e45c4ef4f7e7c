// `isola gate`: the only way out. An unprivileged process that holds the sockets which the launcher opened inside each
// sandbox's network namespace, decides, resolves, connects and forwards. It knows nothing but what it is told over its
// control socket, and leaves when that closes.
#pragma once

#include <chrono>
#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::gate {

struct GateOptions {
  Fd control;               // to the launcher
  std::string servers;      // name servers instead of the host's, as "192.0.2.53:53"
  std::string user;         // whom to become, if root; empty: isola-gate if there is one, else nobody
  std::string authorities;  // a file with certificates that servers may prove themselves by, beside the host's own
  bool confine = true;      // tests that have a gate as a thread of theirs cannot
  std::chrono::milliseconds tell_after{10'000};  // of bytes that moved in a connection that goes on
  size_t events_most = 1024;                     // of one sandbox that wait to be read; the rest is counted
};

Result<void> run_gate(GateOptions options);

}  // namespace isola::gate
