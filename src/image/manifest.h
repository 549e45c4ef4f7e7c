// A template's manifest as JSON text.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "image/template_cache.h"

namespace isola::image {

std::string to_json(const Template& manifest);
// Code::corrupt for anything that to_json does not write, Code::unsupported for a newer format.
Result<Template> parse_manifest(std::string_view text);
// 1 to 64 of [a-z0-9._-], starting with a letter or digit: a name is a file name.
Result<void> check_template_name(const std::string& name);

}  // namespace isola::image
