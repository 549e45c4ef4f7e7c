// Lines that a sandbox sends for a cell, on their way to a caller: read, reduced to what an event can have, translated
// for E2B's clients, written.
#include <nlohmann/json.hpp>

#include "dialect/e2b/results.h"
#include "dialect/shared/text.h"
#include "interpreter/events.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace isola;
  auto line = interpreter::parse_line({reinterpret_cast<const char*>(data), size});
  if (!line) return 0;
  // A failure's words are bounded, and say whose they are.
  if (interpreter::failure_of(*line).message.size() > 8000) __builtin_trap();
  auto event = interpreter::event_of(std::move(*line));
  if (!event) return 0;
  if (!event->is_object() || event->contains("untrusted")) __builtin_trap();
  if (dialect::text_of(*event, "type") == "end" && dialect::text_of(*event, "status").empty()) __builtin_trap();
  std::string native = dialect::dump(*event);
  nlohmann::json translated = e2b::translated(std::move(*event));
  std::string said = dialect::dump(translated);
  // A few bytes do not become many: a value goes to one place.
  if (said.size() > 8 * size + 64 * 1024 + 5 * 1000 * 200) __builtin_trap();
  return native.empty();
}
