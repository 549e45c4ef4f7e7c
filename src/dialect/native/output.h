// The output of a command on its way to a caller: collected, or as lines of NDJSON.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/text_feed.h"
#include "dialect/native/api.h"

namespace isola::native {

enum class Encoding { text, base64 };

struct OutputOptions {
  Clean clean = Clean::no;
  Encoding encoding = Encoding::text;
  size_t most = 1 << 20;  // of each stream, when collected
};

// {"stdout", "stderr", …, "exit_code", …}: what a caller gets who waits. Also records the end.
Task<Result<nlohmann::json>> collect(sandbox::Service& service, sandbox::Running& running,
                                     const OutputOptions& options);

// One JSON object per line as it happens: start, stdout, stderr, gap, ping, exit. When the caller leaves, the command
// goes on.
Task<Result<void>> stream(sandbox::Service& service, http::Exchange& ex, sandbox::Running running,
                          const OutputOptions& options);

std::string base64(std::string_view bytes);

}  // namespace isola::native
