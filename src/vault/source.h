// Where a value comes from that the vault does not hold itself: it is fetched when it is granted, never kept on disk.
//
//   {"type": "file", "path": "/run/keys/github"}
//   {"type": "command", "argv": ["/usr/bin/pass", "show", "github"]}
//   {"type": "env", "name": "ISOLA_SECRET_GITHUB"}                   of the operator's, when the launcher started
//   {"type": "vault-kv", "url": "https://vault.example:8200", "path": "secret/github", "field": "token",
//    "kv_version": 2, "token": "…"}
//   {"type": "aws", "region": "eu-central-1", "secret_id": "github", "field": "token", "access_key_id": "…",
//    "secret_access_key": "…"}
//   {"type": "jwt", "audience": "https://deploy.example"}            made, not fetched: minting.h
//   {"type": "github-app", "app_id": "1", "installation_id": "2", "private_key": "-----BEGIN …"}   likewise
//
// A source may hold credentials of its own (`token`, `secret_access_key`, `session_token`,
// `private_key`), so it is sealed like a
// value. What is sealed says which of the two it is, and whether a source may lead to addresses that are somebody's
// inside: the server knows that when it is set, and nobody can say it of himself in JSON.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vault/seal.h"

namespace isola::vault {

struct Source {
  enum class Type : uint8_t { file, command, env, vault_kv, aws, jwt, github_app };
  Type type = Type::file;
  std::string path;               // file; vault-kv: "mount/…"
  std::vector<std::string> argv;  // command
  std::string name;               // env
  std::string url;                // vault-kv; aws, github-app: instead of the usual one
  std::string field;              // of the JSON that comes back; empty: all of it (aws)
  int kv_version = 2;
  std::string token, name_space;                                                   // vault-kv
  std::string region, secret_id, access_key_id, secret_access_key, session_token;  // aws
  std::string audience;                                                            // jwt: where a binding names none
  int64_t lifetime = 600;                                                          // jwt: seconds
  std::string app_id, installation_id, private_key;                                // github-app
  std::vector<std::string> repositories;           // github-app: only these; empty: all that it may
  std::map<std::string, std::string> permissions;  // github-app: no more than these
  int64_t ttl = 300;                               // seconds until it is fetched again
  bool inside = false;                             // may lead to private addresses, too
};

// Other variables of the launcher's were never meant as secrets for sandboxes.
inline constexpr std::string_view kEnvPrefix = "ISOLA_SECRET_";
inline constexpr size_t kMaxValue = 16 << 10;
inline constexpr int64_t kShortestTtl = 5, kLongestTtl = 24 * 3600;
inline constexpr int64_t kShortestLife = 60;  // of a jwt; the longest: signing_keys.h

Result<Source> parse_source(std::string_view json);
std::string to_json(const Source& source);
// With what JSON does not say: as it is sealed, and as whoever fetches it gets it.
std::string to_kept(const Source& source);
Result<Source> parse_kept(std::string_view text);
// As anybody may see it: without its credentials.
std::string shown_source(const Source& source);
// It reads what this machine has: for the operator alone to set.
bool is_of_machine(const Source& source);
// Its values are made and live for a while (minting.h); others are fetched and stay.
bool is_minted(const Source& source);
bool is_minted(Source::Type type);
std::string_view to_string(Source::Type type);

// What the store keeps of a secret.
Result<std::string> seal_value(const PublicKey& key, std::string_view value);
Result<std::string> seal_source(const PublicKey& key, const Source& source);
struct Kept {
  std::optional<Source> source;
  Secret value;  // where there is no source
};
Result<Kept> open_kept(const KeyPair& key, std::string_view sealed);

// The value in what a source answered: JSON for vault-kv and aws, the bytes themselves (without the newline at their
// end) for the others.
Result<Secret> value_in(const Source& source, std::string_view answer);

}  // namespace isola::vault
