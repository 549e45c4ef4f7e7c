// What a command is called inside the guest: its id, for whom it runs and since when, signed. The guest gives it back
// after a restart of the server, and cannot make one up: what it says under a tag that is not ours is its own word.
//
//   std::string tag = make_tag(secret, sandbox, info);
//   if (auto info = read_tag(secret, sandbox, tag)) …       // id, task, actor, key and started
#pragma once

#include <optional>
#include <string>

#include "sandbox/box.h"

namespace isola::sandbox {

std::string make_tag(const std::string& secret, const std::string& sandbox, const CommandInfo& info);
std::optional<CommandInfo> read_tag(const std::string& secret, const std::string& sandbox, const std::string& tag);

}  // namespace isola::sandbox
