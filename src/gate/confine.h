// What the gate gives up before it reads a single byte from a sandbox: its user, its groups, every capability, every
// way to get one back, and the system calls that it does not need.
#pragma once

#include <string>

#include "base/error.h"

namespace isola::gate {

// `user`: whom to become if root; empty: isola-gate if there is one, else nobody.
Result<void> confine(const std::string& user);

}  // namespace isola::gate
