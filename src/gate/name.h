// Host names as the gate compares them: one spelling per name, and nothing in it that two programs could read
// differently.
//
//   normal_name("PyPI.Example.")   → "pypi.example"
//   normal_name("a\0.example")     → an error: only letters, digits, '-' and '_' in labels
//   normal_name("127.1")           → an error: what ends in a number is an address in some notation, not a name
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "gate/address.h"

namespace isola::gate {

inline constexpr size_t kMaxName = 253, kMaxLabel = 63;

// Lower case, no dot at the end. International names must come as xn-- labels.
Result<std::string> normal_name(std::string_view text);

// "a.b.example" is below "b.example" and "example", not below itself. Both in normal form.
bool is_below(std::string_view name, std::string_view parent);

// The last `labels` labels of a name: ("a.b.example", 2) → "b.example".
std::string_view tail_of(std::string_view name, size_t labels);

// Public resolvers that answer over HTTPS or TLS. A sandbox that reaches one can ask for names that its policy would
// not let it ask for, so a rule must name them exactly: a wildcard or a default is not enough.
bool is_public_resolver(std::string_view name);
bool is_public_resolver(const Address& address);

}  // namespace isola::gate
