// What QEMU writes when a machine is saved, or whoever took it over: no page lies outside of the memory, nothing is
// handed on that did not come in, and how it is cut into pieces changes nothing. The first byte says how.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "boundary/microvm/state_stream.h"

using namespace isola;
using boundary::microvm::StateStream;

namespace {

constexpr uint64_t kMemory = 16 * StateStream::kPage;

struct Outcome {
  bool whole = true;
  std::string pages, rest;
  bool operator==(const Outcome&) const = default;
};

Outcome read(std::string_view input, size_t piece) {
  Outcome outcome;
  StateStream stream(
      kMemory,
      [&](uint64_t at, std::string_view page) -> Result<void> {
        if (at > kMemory - StateStream::kPage || page.size() != StateStream::kPage) std::abort();
        outcome.pages += std::to_string(at) + std::string(page);
        return {};
      },
      [&](std::string_view rest) -> Result<void> {
        outcome.rest += rest;
        return {};
      });
  for (; !input.empty() && outcome.whole; input.remove_prefix(std::min(piece, input.size())))
    outcome.whole = stream.feed(input.substr(0, piece)).has_value();
  outcome.whole = outcome.whole && stream.finish().has_value();
  return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Outcome all = read(input, size), pieces = read(input, 1 + data[0]);
  if (all.rest.size() > input.size()) std::abort();
  if (all.whole != pieces.whole || (all.whole && all != pieces)) std::abort();
  return 0;
}
