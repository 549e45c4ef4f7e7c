// Bindings as a caller writes them, and as our processes pass them on: what is taken is written, taken again, and then
// the same.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "vault/binding_wire.h"

using namespace isola::vault;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (auto binding = parse_binding(input)) {
    std::string text = to_json(*binding);
    auto again = parse_binding(text);
    if (!again || to_json(*again) != text) std::abort();
  }
  if (auto bindings = decode_bindings(input)) {
    std::string bytes = encode_bindings(*bindings);
    auto again = decode_bindings(bytes);
    if (!again || *again != *bindings) std::abort();
  }
  if (auto reasons = decode_reasons(input)) {
    auto again = decode_reasons(encode_reasons(*reasons));
    if (!again || *again != *reasons) std::abort();
  }
  return 0;
}
