// What clients of this dialect get to see of a sandbox, and of a build.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "dialect/e2b/api.h"

namespace isola::e2b {

// Everything that clients decide by version is there from 0.6.4 on.
inline constexpr const char* kEnvdVersion = "0.6.13";

nlohmann::json domain_of(const Options& options);  // null: headers only
nlohmann::json created_view(const store::SandboxRecord& record, const Options& options);
nlohmann::json listed_view(const store::SandboxRecord& record, const Options& options);
nlohmann::json detail_view(const store::SandboxRecord& record, const Options& options);
int vcpus_of(const store::SandboxRecord& record);  // clients know whole ones
std::string_view status_of(store::BuildState state);

// Seconds since 1970 or RFC 3339, in milliseconds. Nothing: neither.
std::optional<store::Millis> parse_time(std::string_view text);

}  // namespace isola::e2b
