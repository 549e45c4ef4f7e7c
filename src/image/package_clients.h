// The machine's own package clients, set up as the operator has them: whatever index, proxy or certificate they use is
// what a template is made from, and none is named in this project.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "image/build_place.h"
#include "image/spawn.h"

namespace isola::image {

// The settings for pip and npm that stand in the environment (their files are read anyway).
std::vector<std::string> client_settings();

// The machine's own pip if it has one, else the template's pip on the machine's Python: both read the machine's
// settings and use its network. `what` begins the message of a failure.
Result<Command> pip_client(const BuildPlace& place, const std::string& what);

}  // namespace isola::image
