#include "store/keys.h"

#include <sys/random.h>

#include <algorithm>
#include <array>

#include "base/hash/sha256.h"
#include "base/ids.h"

namespace isola::store {

namespace {
constexpr std::string_view kPrefix = "e2b_";
constexpr size_t kRandomBytes = 20;
constexpr std::string_view kHex = "0123456789abcdef";
}  // namespace

Result<NewKey> make_key(std::string project, std::string name, Scope scope, Millis now) {
  std::array<unsigned char, kRandomBytes> random;
  if (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    return sys_error("cannot get random bytes for a key");
  NewKey made{.secret = std::string(kPrefix), .record = {}};
  for (unsigned char byte : random) made.secret += {kHex[byte >> 4], kHex[byte & 15]};
  ISOLA_TRY(std::string hash, hash_key(made.secret));
  made.record = {.id = new_key_id(),
                 .project = std::move(project),
                 .name = std::move(name),
                 .hash = std::move(hash),
                 .prefix = made.secret.substr(0, 8),
                 .scope = scope,
                 .created = now};
  return made;
}

bool is_key(std::string_view text) {
  return text.size() == kPrefix.size() + 2 * kRandomBytes && text.starts_with(kPrefix) &&
         std::all_of(text.begin() + kPrefix.size(), text.end(), [](char c) { return kHex.find(c) != kHex.npos; });
}

Result<std::string> hash_key(std::string_view text) { return sha256(text); }

Result<KeyRecord> authenticate(Store& store, std::string_view text) {
  auto refused = fail(Code::denied, "the API key is missing, wrong or revoked");
  if (!is_key(text)) return refused;
  ISOLA_TRY(std::string hash, hash_key(text));
  auto found = store.find_key_by_hash(hash);
  if (!found && found.error().code == Code::not_found) return refused;
  if (!found) return found;
  // The index found it by comparing hashes, whose timing helps nobody: whoever could steer a SHA-256 byte by byte would
  // not need to. The last word still does not depend on it.
  if (!equal_secrets(found->hash, hash) || found->revoked != 0) return refused;
  return found;
}

}  // namespace isola::store
