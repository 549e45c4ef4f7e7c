// One entry of the ledger, and how it is chained: the hash of an entry covers the hash of the one before it and every
// field of its own, so that none can be changed, removed or moved without all later hashes changing; and its mac, made
// with a key that exists no more (ratchet.h), covers the hash, so that nobody can make the later ones anew.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "ledger/kind.h"

namespace isola::ledger {

using Millis = int64_t;

struct Event {
  uint64_t seq = 0;  // 1, 2, 3 …: given by the ledger
  Millis time = 0;   // since 1970; 0: the ledger puts the present
  std::string project, sandbox, task, actor;
  std::string key = {};  // that was authenticated for it; empty: nobody asked. `actor` is only what its holder said
  Kind kind = Kind::sandbox_updated;
  std::string data;        // JSON text; empty: {}
  std::string prev, hash;  // hex; given by the ledger
  std::string mac = {};    // hex, likewise; empty: from before the ledger had keys
};

// The newest entry: kept somewhere else, it lets verify() notice that the end was cut off or everything rewritten.
struct Head {
  uint64_t seq = 0;  // 0: the ledger is empty
  std::string hash;
  bool operator==(const Head&) const = default;
};

// Before the first entry.
inline const std::string kNoHash(64, '0');

// The words of an entry as they are stored: what verify() reads must not pass through an enum first.
// `keyed`: of an entry that has a mac.
Result<std::string> chain_hash(const Event& event, std::string_view kind_word, std::string_view prev, bool keyed);

std::string to_text(const Head& head);  // 17:ab12…
Result<Head> parse_head(std::string_view text);

}  // namespace isola::ledger
