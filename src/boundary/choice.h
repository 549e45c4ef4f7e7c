// Which boundary a sandbox gets, of those that this machine offers.
//
//   ISOLA_TRY(BoundaryKind kind, choose({.wish = BoundaryWish::strongest}, offered));
//
// The order is that of BoundaryKind: each stops more than the one before. What cannot be met is an error that says what
// is missing; nobody is given less than was asked for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "boundary/boundary.h"
#include "boundary/state.h"

namespace isola::boundary {

// A boundary as a launcher knows it.
struct Offer {
  BoundaryKind kind = BoundaryKind::jail;
  bool offered = false;
  Engine engine;        // if it is offered
  std::string detail;   // about it: "shared kernel", "platform systrap"
  std::string missing;  // if it is not: what would be needed
  bool operator==(const Offer&) const = default;
};

struct Choice {
  BoundaryWish wish = BoundaryWish::automatic;
  BoundaryKind at_least = BoundaryKind::jail;  // nothing weaker
  bool operator==(const Choice&) const = default;
};

// `automatic` is the weakest that is enough; `strongest` is the
// strongest that there is.
Result<BoundaryKind> choose(const Choice& choice, std::span<const Offer> offers);

// "jail (shared kernel), gvisor (platform systrap)": those that are offered.
std::string names_of(std::span<const Offer> offers);

}  // namespace isola::boundary
