// What the template code-interpreter has of ours: isola-kernels, kernel specs, drivers of languages and hooks of the
// Python kernel (src/interpreter/root in the sources; the folder isola-interpreter beside the program when built). The
// tree lies as in the template's root and is copied over it.
#pragma once

#include <string>

#include "base/error.h"
#include "image/build_place.h"

namespace isola::image {

// Of all files of ours, for the template's key. not_found: the folder is not beside the program.
Result<std::string> interpreter_digest();
Result<void> install_interpreter(const BuildPlace& place, const Reporter& report);
// After the user is there: what would otherwise be made by the first cell of each sandbox (the list of fonts), and the
// folders for packages that the user installs: an interpreter that runs already looks only into those that it found.
Result<void> warm_interpreter(const BuildPlace& place, const Reporter& report);

}  // namespace isola::image
