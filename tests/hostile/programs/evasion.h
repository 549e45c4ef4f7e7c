// What the evasion programs share. The policy that they try to get around and the servers that they should not reach
// are those of gate/outside.h.
#pragma once

#include "../dialog.h"
#include "../program.h"

namespace isola::hostile {

// What somebody outside answered means that the program got through.
inline Outcome got(const std::string& text) {
  if (text.empty()) return contained("nothing came back");
  if (text[0] == 'E') return contained(text);  // the name of an errno
  return breach(fmt::format("{} bytes came back", text.size()));
}
// The greeting of the server at an address (or why there is no address).
Outcome greet(const std::string& address);
Outcome is_answered(const std::string& resolved);

}  // namespace isola::hostile
