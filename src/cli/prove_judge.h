// What the end of a hostile program says, by what was expected of it (docs/hostile.md has the table). Only the words of
// the program and of the kernel count here; what the host and the neighbour look like afterwards is the runner's.
#pragma once

#include <string>

#include "cli/prove_runner.h"

namespace isola::cli {

Proof judge(const HostileProgram& program, const ProveRunner::Outcome& outcome, const std::string& secret);

// Did a limit of the sandbox's own end it, and may it have?
bool ended_by_limit(const ProveRunner::Outcome& outcome);
bool may_end_by_limit(const HostileProgram& program);

}  // namespace isola::cli
