// What opens a sandbox's data plane: its access token, and signatures made with it.
//
//   std::string token = access_token(secret, "i3k9…");        // "ea_i3k9…_5f0c…": the same after every restart
//   token_names("ea_i3k9…_5f0c…")                             // "i3k9…": a hint where to look, not a proof
//   sign_path("token", "read", "/a", "user", 1700000000)      // "v1_…", as the clients compute it
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"

namespace isola::e2b {

// Made from the server's secret and the id, so nothing has to be stored. The id stands in it because old clients send
// the token with every request, but not always the headers that say which sandbox they mean.
std::string access_token(const std::string& secret, const std::string& sandbox);
std::string token_names(std::string_view token);  // empty: not one of ours

// `user` is the request's own word, empty where it has none; expiry in seconds since 1970.
Result<std::string> sign_path(const std::string& token, std::string_view operation, std::string_view path,
                              std::string_view user, std::optional<int64_t> expires);

}  // namespace isola::e2b
