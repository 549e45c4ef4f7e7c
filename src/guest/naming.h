// What a relay tells the guest behind it, and nobody else says on a link: its name, and the mark that begins its
// generations from then on (guest/agent/relay.h). A guest needs to be told at its start, where nothing else names it,
// and when it was restored from a checkpoint behind another relay: then it knows the name and the mark of whoever it
// was. It goes on with a new generation, which begins with that mark.
#pragma once

#include <string>

#include "guest/link.h"

namespace isola::guest {

// On channel 0, beyond the types that host and guest have (Type).
inline constexpr Type kNaming = static_cast<Type>(10);

struct Naming {
  std::string mark;  // kMarkSize bytes
  std::string id;

  template <typename A>
  void fields(A& a) {
    a(mark, id);
  }
};

}  // namespace isola::guest
