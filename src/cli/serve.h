// isola serve and isola up.
#pragma once

#include "cli/commands.h"

namespace CLI {
class App;
}

namespace isola::cli {

void add_serve(CLI::App& app, Common& common, int& code);

}  // namespace isola::cli
