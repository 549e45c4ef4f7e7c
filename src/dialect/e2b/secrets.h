// Secrets by the names that E2B's clients know them by.
#pragma once

#include <string>

#include "dialect/e2b/rules.h"
#include "http/exchange.h"
#include "sandbox/service.h"
#include "store/records.h"

namespace isola::e2b {

// Made of what it is, so that one made through another API has one, too: sec_ and 20 of [a-z0-9].
std::string secret_id(const store::SecretRecord& secret);
// By id or by name; names are in lower case, unless another API made them.
Result<store::SecretRecord> find_secret(sandbox::Service& service, const std::string& project, const std::string& word);
// Turns the names in rules into those of the project's secrets. denied: the key may not say where a secret goes.
Result<void> find_secrets(sandbox::Service& service, const http::Exchange& ex, Rules& rules);

}  // namespace isola::e2b
