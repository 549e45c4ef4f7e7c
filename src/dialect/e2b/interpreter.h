// Port 49999: what E2B's code-interpreter packages believe to be a server inside the sandbox. The host answers, and
// isola-kernels does the work.
//
//   POST /execute {"code", "context_id" | "language", "env_vars"}      NDJSON, one event per line
//   POST /contexts {"language", "cwd"}   GET /contexts   DELETE /contexts/{id}   POST /contexts/{id}/restart
//   GET  /health
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "http/exchange.h"
#include "sandbox/service.h"

namespace isola::e2b {

inline constexpr uint16_t kInterpreterPort = 49999;

// `token`: what /execute has to bring as X-Access-Token.
Task<void> serve_interpreter(sandbox::Service& service, http::Exchange& ex, sandbox::BoxPtr box, std::string token);

// One of our events as those clients read it; null: they have no such thing.
nlohmann::json translated(const nlohmann::json& event);

}  // namespace isola::e2b
