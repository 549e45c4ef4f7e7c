// A caller's cell, from its request to its end: sent inside, followed, counted, and stopped when the caller leaves,
// when its budget is spent, or when more comes than it may say.
//
//   CellCall call{.service = service, .ex = ex, .box = box, .run = *run, .request = dump(request), …};
//   CellEnd end = co_await follow(std::move(call), [&](json& event) -> Task<bool> { … co_return taken; });
//
// Nothing of what comes is believed (interpreter/events.h).
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "http/exchange.h"
#include "interpreter/bounds.h"
#include "sandbox/service.h"

namespace isola::dialect {

// What the reply holds comes from inside a sandbox. `what`: body, all of it; data, names and texts in it.
inline void mark_untrusted(http::Exchange& ex, std::string_view what = "data") {
  ex.set_header("X-Isola-Untrusted", what);
}

struct CellCall {
  sandbox::Service& service;
  http::Exchange& ex;
  sandbox::BoxPtr box;
  sandbox::CodeRun& run;
  std::string request;            // one object of JSON
  std::string language, context;  // for the ledger: as it was asked for, not as the guest says
  std::chrono::milliseconds ping = std::chrono::seconds(15);  // an event {"type":"ping"} where nothing came for so long
  size_t max_output = interpreter::kUsualOutput;
};

struct CellEnd {
  bool left = false;             // the caller has gone, and the cell was stopped
  std::optional<Error> failure;  // it did not come to an end
  bool from_inside = false;      // the failure is what the sandbox says
};

// An event, as it may go on; false: nobody takes it any more.
using UseEvent = std::function<Task<bool>(nlohmann::json&)>;
Task<CellEnd> follow(CellCall call, const UseEvent& use);

// A request that is answered by one line: that line. Nothing: the caller has left.
Task<Result<std::optional<nlohmann::json>>> ask_inside(sandbox::Service& service, http::Exchange& ex,
                                                       sandbox::BoxPtr box, const nlohmann::json& request);

}  // namespace isola::dialect
