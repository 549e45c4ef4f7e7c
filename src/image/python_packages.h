// Python packages of a template: wheels from the machine's configured index, for the template's own Python (whatever
// Python the machine has), compiled to bytecode that does not look at times, because packing a template sets those.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "image/build_place.h"

namespace isola::image {

// Into /usr/local/lib/python3.N/dist-packages of place.root(). Returns what came, as name=version.
Result<std::vector<std::string>> install_python_packages(const BuildPlace& place, const std::vector<std::string>& names,
                                                         const Reporter& report);

// "3.11" of the Python in a root folder.
Result<std::string> python_version(const std::string& root);

}  // namespace isola::image
