// One command in a sandbox, as if it ran here: its output is ours, our input and signals are its, its exit code is
// ours. A connection that breaks is taken up again where it broke.
//
//   return run_remote(api, {.sandbox = id, .target = "/v1/sandboxes/" + id + "/commands", .body = text});
#pragma once

#include <string>

#include "cli/api.h"

namespace isola::cli {

struct RemoteCommand {
  std::string sandbox;  // its id or name, for stdin, signals and coming back
  std::string target;   // POST here
  std::string body;     // with "stream": true, and "open_stdin": true for `input`
  bool encoded = true;  // "encoding": "base64"
  bool input = true;    // forward our standard input
  bool reattach = true;
  bool json = false;  // one JSON result at the end, instead of the output as it comes
};
int run_remote(Api& api, const RemoteCommand& command);

}  // namespace isola::cli
