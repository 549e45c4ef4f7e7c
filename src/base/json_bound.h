// How much a JSON text would become, told before it is parsed: sixteen MiB of "[[],[],…" are hundreds of MiB as values,
// and a hundred thousand brackets in a row cost a recursive parser its stack.
//
//   ISOLA_CHECK(check_json_bound(body));
//   json value = json::parse(body);
#pragma once

#include <string_view>

#include "base/error.h"

namespace isola {

struct JsonBound {
  size_t depth = 64;
  size_t values = 100'000;  // and keys, of the whole text
};

// invalid: more than that. A text that is no JSON passes: its parser says what is wrong with it.
Result<void> check_json_bound(std::string_view text, JsonBound bound = {});

}  // namespace isola
