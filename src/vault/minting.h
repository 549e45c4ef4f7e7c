// Credentials that are made when they are needed and live for minutes, so that none that lives for years has to exist.
//
//   {"type": "jwt", "audience": "https://deploy.example", "lifetime": 600}
//   {"type": "github-app", "app_id": "12345", "installation_id": "678", "private_key": "-----BEGIN RSA PRIVATE
//   KEY-----…",
//    "repositories": ["site"], "permissions": {"contents": "read"}}
//
// The first is a token that says who a sandbox is, signed by this installation (OpenID Connect); whoever trusts it
// reads the key at ISSUER/.well-known/jwks.json. The second is an exchange: a token that says who the app is, signed
// with the app's key, for one that opens its repositories.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vault/binding.h"
#include "vault/rsa_key.h"
#include "vault/source.h"

namespace isola::vault {

// A value and, where it does not last, until when it may be used and from when on another is due: milliseconds since
// 1970, 0: for ever. `serial` names it in records.
struct Made {
  Secret value;
  int64_t until = 0, due = 0;
  std::string serial;
};

// `identity`: a JSON object, what the server says of the sandbox (issuer, project, task, actor, template). `sandbox`
// is what the launcher itself knows. `now` in milliseconds.
Result<Made> make_identity_token(const RsaKey& key, const Source& source, const Binding& binding,
                                 const std::string& sandbox, int64_t now);

// What is asked of GitHub's API, and what it answered.
struct GithubRequest {
  std::string target;                                        // below the API's own path
  std::vector<std::pair<std::string, std::string>> headers;  // one of them is a credential
  std::string body;
};
Result<GithubRequest> github_exchange(const Source& source, int64_t now);
Result<Made> read_github_answer(std::string_view answer, int64_t now);

// Tells apart what has to be made anew from what can be used again: of the sealed secret, and what goes into a token.
std::string mark_of(const Binding& binding, std::string_view key_id);

}  // namespace isola::vault
