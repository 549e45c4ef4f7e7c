// Makes the root folder of a template from a recipe and the machine's package sources.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "image/apt_sources.h"
#include "image/build_place.h"
#include "image/recipes.h"

namespace isola::image {

// Fills place.root(); returns the installed packages as name=version, sorted.
Result<std::vector<std::string>> make_rootfs(const BuildPlace& place, const Recipe& recipe, const HostSources& host,
                                             const Reporter& report);

}  // namespace isola::image
