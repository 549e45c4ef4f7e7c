// A head of the ledger, taken away to where the server cannot write: as long as it is kept, an end that was cut off
// below it is noticed, even by whoever has no other copy. It carries a mac of its own, so that the one who keeps it
// need not be trusted either.
//
//   {"isola_checkpoint":1,"head":"1042:9f…","time":1763000000000,"mac":"5c…"}
#pragma once

#include <string>
#include <string_view>

#include "ledger/event.h"
#include "ledger/ratchet.h"

namespace isola::ledger {

struct Checkpoint {
  Head head;
  Millis time = 0;
  bool operator==(const Checkpoint&) const = default;
};

Result<std::string> to_text(const Checkpoint& checkpoint, const VerificationKeys& keys);  // one line, with its end
// corrupt: it is none, or was not made with these keys. Without keys its mac is not checked.
Result<Checkpoint> parse_checkpoint(std::string_view text, const VerificationKeys* keys);

}  // namespace isola::ledger
