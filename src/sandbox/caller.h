// On whose word something happens, for the ledger: the key that was authenticated, and whom its holder says to act for.
// The two are never mixed: the first is known, the second is only claimed. Neither: nobody asked (a timer, the guest).
#pragma once

#include <string>
#include <utility>

namespace isola::sandbox {

class Caller {
 public:
  Caller() = default;
  explicit Caller(std::string key_id, std::string claimed = {}) : key(std::move(key_id)), actor(std::move(claimed)) {}

  std::string key;    // the id of an API key, or kOwnToken
  std::string actor;  // free text
};

// Whoever came with the sandbox's own token instead of a key.
inline constexpr char kOwnToken[] = "sandbox-token";

}  // namespace isola::sandbox
