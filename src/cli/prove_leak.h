// Takes protections of a sandbox away again, for the test that `isola prove` calls that a breach: without it, a program
// that never reports anything would look like one that is contained. Reached through the fault `prove_leak` only.
//
//   ISOLA_TRY(auto leak, leak_into(pid, services));    // the sandbox shows the host for as long as this lives
#pragma once

#include <sys/types.h>

#include <memory>

#include "base/error.h"
#include "cli/host_services.h"

namespace isola::cli {

// As if the sandbox with this process 1 had no uts, cgroup and network namespaces of its own: it has the host's name,
// sees its control groups as the host does, and the host's services are where it is, with no packet rules between.
Result<std::unique_ptr<HostServices>> leak_into(pid_t pid, const HostServices& services);

}  // namespace isola::cli
