// What a guest with a kernel of its own has to mend when its machine was stopped and copied: the clock, which stood
// still, and the random numbers, which every copy would draw alike.
//
//   ISOLA_CHECK(awake_at(naming.time, naming.randomness));   // before anything of the sandbox is answered
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace isola::guest {

// Sets the kernel's clock, and makes it draw from that randomness besides its own, at once.
Result<void> awake_at(int64_t nanoseconds_since_1970, std::string_view randomness);

}  // namespace isola::guest
