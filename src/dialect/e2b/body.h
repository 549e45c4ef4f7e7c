// The body of a request of the control plane: an object of JSON, in which null is as good as nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "http/exchange.h"

namespace isola::e2b {

// `may_be_empty`: nothing counts as an object without fields.
Task<Result<nlohmann::json>> read_body(http::Exchange& ex, bool may_be_empty = false, size_t most = 1 << 20);
// The rest of what is sent, for as long as a large file takes: clients that are still writing when the answer comes see
// a broken connection and not the answer. For callers who showed a right to send it.
Task<void> swallow(http::Exchange& ex);
bool given(const nlohmann::json& body, const char* name);
Result<std::string> text(const nlohmann::json& body, const char* name);  // not given: empty
// In milliseconds, at least one: nobody says "never" here. Not given: `otherwise`.
Result<int64_t> seconds(const nlohmann::json& body, const char* name, double otherwise);
std::string lower(std::string text);  // names of secrets and hosts: one spelling of each

}  // namespace isola::e2b
