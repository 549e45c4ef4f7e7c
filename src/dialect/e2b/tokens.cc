#include "dialect/e2b/tokens.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/ids.h"
#include "dialect/shared/base64.h"
#include "dialect/shared/target.h"

namespace isola::e2b {

namespace {
constexpr std::string_view kVolumePrefix = "ev_";
}  // namespace

namespace {

// 40 hex digits; empty: there is no secret.
std::string seal(const std::string& secret, const std::string& text) {
  unsigned char mac[EVP_MAX_MD_SIZE] = {};
  unsigned size = 0;
  // Without a secret there is no token that could be guessed, and none that fits.
  if (secret.empty() || !::HMAC(::EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
                                reinterpret_cast<const unsigned char*>(text.data()), text.size(), mac, &size))
    return {};
  std::string word;
  for (unsigned i = 0; i < 20; ++i) word += fmt::format("{:02x}", mac[i]);
  return word;
}

}  // namespace

std::string access_token(const std::string& secret, const std::string& sandbox, store::Millis revoked) {
  std::string text = "isola-e2b-access-1\n" + sandbox;
  if (revoked) text += fmt::format("\n{}", revoked);
  std::string word = seal(secret, text);
  return word.empty() ? word : std::string(dialect::kTokenPrefix) + sandbox + "_" + word;
}

std::string volume_token(const std::string& secret, const std::string& volume, const std::string& key) {
  std::string word = seal(secret, "isola-e2b-volume-1\n" + volume + "\n" + key);
  return word.empty() ? word : std::string(kVolumePrefix) + volume + "_" + key + "_" + word;
}

std::optional<VolumeToken> read_volume_token(const std::string& secret, std::string_view token) {
  if (!token.starts_with(kVolumePrefix)) return std::nullopt;
  std::string_view rest = token.substr(kVolumePrefix.size());
  auto first = rest.find('_'), last = rest.rfind('_');
  if (first == rest.npos || last <= first) return std::nullopt;
  VolumeToken named{std::string(rest.substr(0, first)), std::string(rest.substr(first + 1, last - first - 1))};
  if (!is_volume_id(named.volume)) return std::nullopt;
  std::string right = volume_token(secret, named.volume, named.key);
  if (right.empty() || right.size() != token.size() || ::CRYPTO_memcmp(right.data(), token.data(), right.size()) != 0)
    return std::nullopt;
  return named;
}

std::string upload_token(const std::string& secret, const std::string& project, const std::string& hash,
                         const std::string& key, const std::string& expires) {
  return seal(secret, "isola-e2b-upload-2\n" + project + "\n" + hash + "\n" + key + "\n" + expires);
}

std::string Tokens::of(const std::string& sandbox, const std::string& made_by) const {
  store::Millis revoked = revoked_ ? revoked_(made_by) : 0;
  {
    std::lock_guard lock(mutex_);
    if (auto at = made_.find(sandbox); at != made_.end() && at->second.revoked == revoked) return at->second.token;
  }
  std::string token = access_token(secret_, sandbox, revoked);
  std::lock_guard lock(mutex_);
  if (made_.size() >= kMost) made_.clear();  // mostly of those that ended: the living ones are soon here again
  made_[sandbox] = {revoked, token};
  return token;
}

Result<std::string> sign_path(const std::string& token, std::string_view operation, std::string_view path,
                              std::string_view user, std::optional<int64_t> expires) {
  std::string text = fmt::format("{}:{}:{}:{}", path, operation, user, token);
  if (expires) text += fmt::format(":{}", *expires);
  unsigned char hash[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (!::EVP_Digest(text.data(), text.size(), hash, &size, ::EVP_sha256(), nullptr))
    return fail(Code::internal, "cannot hash");
  std::string out = "v1_" + dialect::base64({reinterpret_cast<const char*>(hash), size});
  while (out.ends_with('=')) out.pop_back();
  return out;
}

}  // namespace isola::e2b
