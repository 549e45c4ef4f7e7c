// Addresses for tests, written as text.
#pragma once

#include <string_view>

#include "gate/address.h"

namespace isola::gate {

inline Address at(std::string_view text) { return Address::parse(text).value(); }

}  // namespace isola::gate
