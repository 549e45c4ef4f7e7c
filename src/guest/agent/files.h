// The file operations. Every one of them runs as its acting user (ActAs), inside the sandbox: the host never opens a
// path that a sandbox controls. Long ones (list, remove, read, write) are channels that work in slices.
#pragma once

#include <string_view>

#include "base/error.h"
#include "guest/agent/agent.h"

namespace isola::guest {

Result<Mux::Opened> open_file(Op op, std::string_view args);

}  // namespace isola::guest
