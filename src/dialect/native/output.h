// The output of a command on its way to a caller: collected, or as lines of NDJSON.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "base/shares.h"
#include "base/text_feed.h"
#include "dialect/native/api.h"
#include "dialect/shared/base64.h"

namespace isola::native {

using dialect::base64;

// A command that could not be started: said with a code of its own where shells have one (command_not_found,
// command_not_executable). Other failures are left to the caller.
void explain_start(http::Exchange& ex, const Error& error);

// What came from inside, as it came.
struct Piece {
  guest::Stream stream = guest::Stream::none;
  uint64_t seq = 0;
  std::string_view bytes;
};
Result<Piece> read_piece(std::string_view frame);
uint64_t lost_in(const Piece& gap);

enum class Encoding { text, base64 };

inline constexpr uint64_t kMostCollected = 8 << 20;  // of each stream; who wants more streams it

struct OutputOptions {
  Clean clean = Clean::no;
  Encoding encoding = Encoding::text;
  size_t most = 1 << 20;          // of each stream, when collected
  uint64_t from = 0;              // streamed: where it begins
  std::optional<uint64_t> there;  // streamed: up to this sequence number it was there already; a line says when
  bool follow = true;             // … and if not this, the stream ends with that line
  bool held = false;              // streamed: the command waits for this reader, who may pause
};

// What all who wait for answers make us hold, by project: a tenant's crowd must not take everybody's memory. Held by
// the handler until its reply has a share of its own.
Shares::Share room_for_answer(const std::string& project);

// {"stdout", "stderr", …, "exit_code", …}: what a caller gets who waits. Also records the end.
Task<Result<nlohmann::json>> collect(sandbox::Service& service, sandbox::Running& running, const OutputOptions& options,
                                     Shares::Share& room);

// One JSON object per line as it happens: start, stdout, stderr, gap, caught_up, ping, exit, error. When the caller
// leaves, the command goes on.
Task<Result<void>> stream(sandbox::Service& service, http::Exchange& ex, sandbox::Running running,
                          const OutputOptions& options);

}  // namespace isola::native
