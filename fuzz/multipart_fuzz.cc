// A form in two different cuts: both must give the same parts, in little memory.
#include <cstddef>
#include <cstdint>

#include "http/multipart.h"

using namespace isola::http;

namespace {

struct Seen {
  std::string text;
  bool fine = true;
};

Seen read(std::string_view boundary, std::string_view form, size_t step) {
  Seen seen;
  MultipartParser parser(boundary,
                         {.part =
                              [&](const Part& part) {
                                seen.text += "[" + part.name + "|" + part.filename + "|" + part.type + "]";
                                return isola::Result<void>();
                              },
                          .data =
                              [&](std::string_view piece) {
                                seen.text += piece;
                                return isola::Result<void>();
                              },
                          .end =
                              [&] {
                                seen.text += ";";
                                return isola::Result<void>();
                              }},
                         20);
  for (size_t i = 0; i < form.size() && seen.fine; i += step) {
    seen.fine = parser.feed(form.substr(i, step)).has_value();
    if (parser.held() > (32 << 10)) __builtin_trap();
  }
  seen.fine = seen.fine && parser.finish().has_value();
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < 2) return 0;
  size_t step = static_cast<unsigned char>(input[0]) % 37 + 1;
  input.remove_prefix(1);
  (void)multipart_boundary(input);
  Seen torn = read("B", input, step), whole = read("B", input, input.size());
  // Refusals may come earlier or later; what is accepted must be one thing.
  if (torn.fine != whole.fine || (whole.fine && torn.text != whole.text)) __builtin_trap();
  return 0;
}
