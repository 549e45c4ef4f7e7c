// `isola serve`: everything put together.
#pragma once

#include <functional>
#include <string>

#include "base/error.h"
#include "server/config.h"

namespace isola::server {

struct ServeOptions {
  Config config;
  std::function<Result<Config>()> reload;                          // on SIGHUP: what the configuration says now
  int ready_fd = -1;                                               // told "ready URL\n", or why not, and closed
  std::function<void(const std::string& url)> on_ready = nullptr;  // before ready_fd is told
};

// Runs until SIGTERM or SIGINT. Sandboxes live on; the next server on the same data directory finds them again.
Result<void> serve(const ServeOptions& options);

}  // namespace isola::server
