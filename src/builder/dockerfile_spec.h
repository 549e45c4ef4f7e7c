// A Dockerfile as steps of a build, and images under the names that templates have here.
#pragma once

#include <string>

#include "builder/dockerfile.h"
#include "builder/spec.h"

namespace isola::builder {

// The last stage, on top of the earlier ones that it begins with. `context`: the hash of the uploaded files.
Result<Spec> to_spec(const Dockerfile& file, const std::string& context);

// Images that are here under another name. Others would have to come from a registry.
Result<std::string> template_for(const std::string& image);

}  // namespace isola::builder
