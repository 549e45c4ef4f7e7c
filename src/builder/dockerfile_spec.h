// A Dockerfile as steps of a build, and images under the names that templates have here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "builder/dockerfile.h"
#include "builder/spec.h"

namespace isola::builder {

// The last stage, on top of the earlier ones that it begins with; stages and images that files are copied from become
// parts, those that nothing needs are left out. `context`: the hash of the uploaded files.
Result<Spec> to_spec(const Dockerfile& file, const std::string& context);

// All of what was sent. `ignored`, if wanted, gets what was understood and left out.
Result<Spec> read_written(Written written, const BaseVariables& variables, std::vector<std::string>* ignored = nullptr);

// Everything that the result stands on or copies from, each once: templates and images, as the Dockerfile names them.
std::vector<std::string> bases_of(const Spec& spec);

// Images that are here under another name; nullopt: it is none of them.
std::optional<std::string> template_for(const std::string& image);

}  // namespace isola::builder
