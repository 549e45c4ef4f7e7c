// What people write on a command line, made into data: no terminal, no machine, nothing but words.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "boundary/boundary.h"
#include "cli/commands.h"

namespace isola::cli {

// Where the command inside begins in the words after `isola`: after `run`, our options and their values, and at one
// `--` if there is one. Only that first `--` is ours; a later one belongs to the command (git checkout -- file).
// words.size() when there is none. `takes_value(in_run, option)` says which options take the next word with them.
//
//   {"run", "-e", "A=1", "--", "ls", "-l"} → 3;  {"run", "--cold", "ls"} → 2;  {"doctor"} → 1
size_t command_begins(const std::vector<std::string>& words,
                      const std::function<bool(bool in_run, const std::string& option)>& takes_value);

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
