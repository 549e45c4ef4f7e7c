// What the end of a hostile program says, by what was expected of it (docs/hostile.md has the table). Only the words of
// the program and of the kernel count here; what the host and the neighbour look like afterwards is the runner's.
#pragma once

#include <string>

#include "cli/prove_runner.h"

namespace isola::cli {

Proof judge(const HostileProgram& program, const ProveRunner::Outcome& outcome, const std::string& secret,
            BoundaryKind kind = BoundaryKind::jail);

// Did a limit of the sandbox's own end it, and may it have?
// (An engine that cannot go on at a limit ends with its sandbox, and cannot say that it was one.)
bool ended_by_limit(const ProveRunner::Outcome& outcome, BoundaryKind kind = BoundaryKind::jail);
bool may_end_by_limit(const HostileProgram& program);
// May it succeed there, since all it reaches is a kernel of the sandbox's own?
bool allowed_inside(const HostileProgram& program, BoundaryKind kind);

}  // namespace isola::cli
