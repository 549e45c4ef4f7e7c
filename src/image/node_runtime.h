// A current Node LTS with npm in a root folder: the distribution's own is years old. It comes from the machine's
// configured Python package index, or from its npm registry, whichever there is a client for.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "image/build_place.h"

namespace isola::image {

// Puts node, npm and npx into /usr/local of place.root() and runs them once. Returns "node=<version>".
Result<std::string> install_node(const BuildPlace& place, const Reporter& report);

// From `pip index versions`: the newest release of a line with long-term support; empty: none. A line with an even
// number begins in April and has long-term support from the end of October (24: 2025); odd ones never have it.
std::string newest_lts(std::string_view pip_output, int year, int month);

}  // namespace isola::image
