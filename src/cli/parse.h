// What people write on a command line, made into data: no terminal, no machine, nothing but words.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "boundary/boundary.h"
#include "cli/commands.h"

namespace isola::cli {

// NAME=value, each of them.
Result<void> check_environment(const std::vector<std::string>& entries);

// HOST[:INSIDE] of --mount-ro; the same path inside unless told otherwise.
struct Mount {
  std::string host, inside;
  bool operator==(const Mount&) const = default;
};
Result<Mount> parse_mount(const std::string& text);

// The options' sizes and times over their defaults.
Result<boundary::Limits> limits_of(const RunOptions& options);

}  // namespace isola::cli
