// Bindings on their way between our own processes: server, launcher, its helpers and the gate. The binary form of
// base/codec.h, so that whoever has privileges parses nothing that a stranger chose the shape of; what JSON says of
// bindings (binding.h) is read by the server alone.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "vault/binding.h"

namespace isola::vault {

inline constexpr size_t kBindingsHead = 5;  // bytes before the first of them
// None at all: an empty text.
std::string encode_bindings(const std::vector<Binding>& bindings);
// Each is checked as one that came as JSON is.
Result<std::vector<Binding>> decode_bindings(std::string_view bytes);

// Why some bindings are not in force, by their ids; "" as an id: all of them. None: an empty text.
using Reasons = std::map<std::string, std::string>;
std::string encode_reasons(const Reasons& reasons);
Result<Reasons> decode_reasons(std::string_view bytes);

}  // namespace isola::vault
