// isola certs, registered as the other commands are (register.h).
#pragma once

#include "cli/register.h"

namespace isola::cli {

void add_certs(CLI::App& app, Common& common, int& code);

}  // namespace isola::cli
