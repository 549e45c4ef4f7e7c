// What a relay tells the guest behind it, and nobody else says on a link: its name, and the mark that begins its
// generations from then on (guest/agent/relay.h). A guest needs to be told at its start, where nothing else names it,
// and when it was restored from a checkpoint behind another relay: then it knows the name and the mark of whoever it
// was. It goes on with a new generation, which begins with that mark.
//
// A guest with a kernel of its own, in a machine whose clock and random numbers may be those of a moment long ago or of
// another sandbox (guest/agent/rebirth.h), is told the time and given fresh randomness as well. It does not answer
// unless it has taken both.
#pragma once

#include <string>

#include "guest/link.h"

namespace isola::guest {

// On channel 0, beyond the types that host and guest have (Type).
inline constexpr Type kNaming = static_cast<Type>(10);
inline constexpr size_t kRandomness = 64;

struct Naming {
  std::string mark;  // kMarkSize bytes
  std::string id;
  int64_t time = 0;        // nanoseconds since 1970; 0: the guest's clock is right
  std::string randomness;  // kRandomness bytes, with the time

  template <typename A>
  void fields(A& a) {
    a(mark, id, time, randomness);
  }
};

}  // namespace isola::guest
