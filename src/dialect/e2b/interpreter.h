// Port 49999: what E2B's code-interpreter packages believe to be a server inside the sandbox. The host answers, and
// isola-kernels does the work.
//
//   POST /execute {"code", "context_id" | "language", "env_vars"}      NDJSON, one event per line
//   POST /contexts {"language", "cwd"}   GET /contexts   DELETE /contexts/{id}   POST /contexts/{id}/restart
//   GET  /health
#pragma once

#include <string>

#include "http/exchange.h"
#include "sandbox/service.h"

namespace isola::e2b {

inline constexpr uint16_t kInterpreterPort = 49999;

// What a request has to bring as X-Access-Token. /execute always; those of contexts only `of_contexts`, since E2B's
// packages send none there: without it, whoever knows a sandbox's name can list, make, restart and delete contexts.
struct InterpreterAccess {
  std::string token;
  bool of_contexts = false;
};
Task<void> serve_interpreter(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box,
                             InterpreterAccess access);

}  // namespace isola::e2b
