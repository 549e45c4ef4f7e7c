// A command of the service's own: run to its end, with the last of what it said for an error message.
#pragma once

#include <string>

#include "sandbox/service.h"

namespace isola::sandbox {

struct QuietEnd {
  guest::Exit exit;
  std::string output;
};

Task<Result<QuietEnd>> run_quietly(Service& service, BoxPtr box, CommandSpec spec);

}  // namespace isola::sandbox
