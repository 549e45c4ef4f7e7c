// What opens a sandbox's data plane: its access token, and signatures made with it.
//
//   std::string token = access_token(secret, "i3k9…", 0);     // "ea_i3k9…_5f0c…": the same after every restart
//   token_names("ea_i3k9…_5f0c…")                             // "i3k9…": a hint where to look, not a proof
//   sign_path("token", "read", "/a", "user", 1700000000)      // "v1_…", as the clients compute it
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "dialect/shared/target.h"
#include "store/records.h"

namespace isola::e2b {

// Made from the server's secret and the id, so nothing has to be stored. The id stands in it because old clients send
// the token with every request, but not always the headers that say which sandbox they mean. `revoked`: when the key
// that made the sandbox was revoked; 0: it was not. So a token that this key was given ends with it.
std::string access_token(const std::string& secret, const std::string& sandbox, store::Millis revoked);
using dialect::token_names;

// What opens the files of a volume: the word of the key that asked for it, which ends with that key.
std::string volume_token(const std::string& secret, const std::string& volume, const std::string& key);
struct VolumeToken {
  std::string volume, key;
};
std::optional<VolumeToken> read_volume_token(const std::string& secret, std::string_view token);

// What lets the files of a build in, once it is known who may: the word of the key that asked where to put them, until
// `expires`, in seconds since 1970.
std::string upload_token(const std::string& secret, const std::string& project, const std::string& hash,
                         const std::string& key, const std::string& expires);

// The tokens of living sandboxes, remembered: one is made once. Any thread.
class Tokens {
 public:
  // When a key was revoked; 0: it was not, or it is no key of ours.
  using Revoked = std::function<store::Millis(const std::string& key)>;
  Tokens(std::string secret, Revoked revoked) : secret_(std::move(secret)), revoked_(std::move(revoked)) {}
  std::string of(const std::string& sandbox, const std::string& made_by) const;
  std::string of(const store::SandboxRecord& record) const { return of(record.id, record.made_by); }

 private:
  struct Made {
    store::Millis revoked = 0;
    std::string token;
  };
  static constexpr size_t kMost = 65536;
  const std::string secret_;
  const Revoked revoked_;
  mutable std::mutex mutex_;
  mutable std::unordered_map<std::string, Made> made_;
};

// `user` is the request's own word, empty where it has none; expiry in seconds since 1970.
Result<std::string> sign_path(const std::string& token, std::string_view operation, std::string_view path,
                              std::string_view user, std::optional<int64_t> expires);

}  // namespace isola::e2b
