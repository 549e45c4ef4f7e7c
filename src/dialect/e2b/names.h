// What clients call a template: its id, its name or another name of it, perhaps with a tag behind a colon. Asked once,
// where a request comes in; from there on a template has one name.
#pragma once

#include <string>

#include "sandbox/service.h"

namespace isola::e2b {

// "x:default" is x: the one tag that everything has.
std::string without_tag(std::string name);
// The tag, too, if there is one.
std::string plain_name(std::string name);

// One that the project built: its name, and the tag that was asked for. One of this machine: its own name; those have
// no tags, so that `latest` means the same. All others stay as they are.
std::string template_named(sandbox::Service& service, const std::string& project, std::string name);
// The id that clients see: of one that was built its own, of all others the name.
std::string template_id(sandbox::Service& service, const std::string& project, const std::string& name);

}  // namespace isola::e2b
