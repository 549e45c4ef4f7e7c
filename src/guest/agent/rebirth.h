// What a guest with a kernel of its own has to mend when its machine was stopped and copied: the clock, which stood
// still, and the random numbers, which every copy would draw alike.
//
//   ISOLA_CHECK(expect_rebirth());                           // at its birth: nothing of the sandbox's is opened later
//   ISOLA_CHECK(awake_at(naming.time, naming.randomness));   // before anything of the sandbox is answered
#pragma once

#include <cstdint>
#include <string_view>

#include "base/error.h"

namespace isola::guest {

// Opens the random device, for good: later the name would be the sandbox's to give to something else.
Result<void> expect_rebirth();

Result<void> set_clock(int64_t nanoseconds_since_1970);

// Sets the kernel's clock, and makes it draw from that randomness besides its own, at once.
Result<void> awake_at(int64_t nanoseconds_since_1970, std::string_view randomness);

}  // namespace isola::guest
