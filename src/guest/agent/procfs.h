// What /proc tells about the sandbox from inside: sessions, sums, listening ports.
#pragma once

#include <sys/types.h>

#include "guest/messages.h"

namespace isola::guest {

// Signals every process of the session, whatever group it moved to, and each once; looks again until a pass finds
// nobody new, so that those who fork meanwhile are met as well. Returns how many it signalled, where the leader's group
// counts as one.
int signal_session(pid_t session, int signal);

Metrics read_metrics();
Ports read_ports();
// The listening sockets in the text of /proc/net/tcp or tcp6.
void parse_ports(std::string_view table, bool v6, Ports& out);

}  // namespace isola::guest
