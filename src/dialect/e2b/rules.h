// What E2B's network.rules say, made into bindings: the gate sets those headers on the way out (docs/vault.md).
//
//   {"api.x.org": [{"transform": {"headers": {"Authorization": "Bearer ${e2b.secrets.key}"}}}]}
//
// A header that names a secret is bound to that secret; one that is written out has a value of this sandbox alone.
// Neither value is ever inside, and neither is shown again.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "sandbox/service.h"

namespace isola::e2b {

struct Rules {
  // In the order in which the gate is to ask them: exact names, then wildcards, the longest first.
  std::vector<sandbox::NetworkGrant> grants;
  nlohmann::json shown = nlohmann::json::object();  // as they were given, but for values

  bool name_secrets() const;
};

Result<Rules> read_rules(const nlohmann::json& rules);

}  // namespace isola::e2b
