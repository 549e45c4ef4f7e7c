// What E2B's network.rules say, made into bindings: the gate sets those headers on the way out (docs/vault.md).
//
//   {"api.x.org": [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.key}"}}}]}
//
// A header that names a secret is bound to that secret; one that is written out has a value of this sandbox alone; one
// that names a token of the sandbox's identity (${e2b.identity.tokens.NAME}) gets one that is made when it is needed.
// No value is ever inside, and none is shown again.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "sandbox/service.h"

namespace isola::e2b {

struct Rules {
  // In the order in which the gate is to ask them: exact names, then wildcards, the longest first.
  std::vector<sandbox::NetworkGrant> grants;
  nlohmann::json shown = nlohmann::json::object();  // as they were given, but for values

  bool name_secrets() const;  // or tokens of identity
};

// Tokens of a sandbox's identity by the names that rules call them by: whom each of them is for.
using Identities = std::map<std::string, std::string>;
// {"tokens": {"aws": {"audience": "sts.example", "tokenType": "JWT-SVID"}}}
Result<Identities> read_identities(const nlohmann::json& iam);

Result<Rules> read_rules(const nlohmann::json& rules, const Identities& identities = {});

}  // namespace isola::e2b
