// Bindings as a caller writes them: what is taken is written, taken again, and then the same text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "vault/binding.h"

using namespace isola::vault;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  (void)parse_binding(input);
  auto bindings = parse_bindings(input);
  if (!bindings || bindings->empty()) return 0;
  std::string text = to_json(*bindings);
  auto again = parse_bindings(text);
  if (!again || to_json(*again) != text) std::abort();
  return 0;
}
