// What a program says of itself, for those who need to know which one they found.
//
//   ISOLA_TRY(std::string text, output_of("/usr/bin/runsc", "--version"));
#pragma once

#include <string>

#include "base/error.h"

namespace isola::boundary {

// What it prints on either output, run without an environment; an error if it does not end in ten seconds.
Result<std::string> output_of(const std::string& program, const std::string& argument);

}  // namespace isola::boundary
