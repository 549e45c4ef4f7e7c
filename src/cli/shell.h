// A terminal inside a sandbox, shown through ours.
#pragma once

#include <string>

#include "cli/api.h"

namespace isola::cli {

struct TerminalRequest {
  std::string sandbox;  // its id
  std::string command;  // a line for bash; empty: a login shell
  std::string cwd, user;
  std::string attach;  // a command that has a terminal already, instead of a new one
};
int run_terminal(Api& api, const TerminalRequest& request);

}  // namespace isola::cli
