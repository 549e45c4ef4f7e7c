// What a sandbox of a template with an interpreter begins with: a Python kernel that has the science stack imported.
#pragma once

#include <string>

#include "base/task.h"
#include "sandbox/service.h"

namespace isola::interpreter {

bool has_interpreter(const std::string& template_name);
// Returns when the kernel waits for its first cell.
Task<Result<void>> warm(sandbox::Service& service, sandbox::BoxPtr box);

}  // namespace isola::interpreter
