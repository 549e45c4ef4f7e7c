// The keys that tokens of sandboxes are signed with, in their file: the private halves sealed to the vault's key, the
// public ones in clear, for everybody.
//
//   ISOLA_TRY(auto keys, SigningKeys::open(dir + "/vault/signing"));
//   ISOLA_CHECK(keys.add({.id = key.id(), .created = now, .jwk = key.jwk(), .sealed = …}, now, false));
//   publish(keys.published(now));
//
// A new key is published before it is used: whoever checks tokens keeps what he read for a while. It signs from kAhead
// on, and the one before stays published for as long as its last tokens live. One that was stolen is replaced at once
// instead: then nobody believes its tokens any more, those that are out included.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace isola::vault {

inline constexpr int64_t kLongestLife = 3600;  // of a token, in seconds

class SigningKeys {
 public:
  static constexpr int64_t kAhead = 15 * 60, kBehind = kLongestLife + 5 * 60;  // seconds

  struct One {
    std::string id;
    int64_t created = 0;  // seconds since 1970
    std::string jwk;      // its public half, JSON
    std::string sealed;
  };

  // A file that is not there is made by the first add().
  static Result<SigningKeys> open(const std::string& path);

  bool empty() const { return all_.empty(); }
  const std::vector<One>& all() const { return all_; }  // the oldest first
  // That signs now; null: there is none.
  const One* current(int64_t now) const;
  // A JSON Web Key Set (RFC 7517).
  std::string published(int64_t now) const;

  // Forgets those that nobody needs any more; `at_once`: all others.
  Result<void> add(One key, int64_t now, bool at_once);
  // In the order of all().
  Result<void> reseal(const std::vector<std::string>& sealed);

 private:
  SigningKeys() = default;
  size_t first_needed(int64_t now) const;
  Result<void> save(const std::vector<One>& all) const;

  std::string path_;
  std::vector<One> all_;
};

}  // namespace isola::vault
