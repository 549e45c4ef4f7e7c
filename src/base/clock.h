// The time of day in the unit that our records and messages use.
#pragma once

#include <chrono>
#include <cstdint>

namespace isola {

// Milliseconds since 1970. It jumps when somebody sets the clock: how long something takes is steady_clock's.
inline int64_t milliseconds_now() {
  using namespace std::chrono;
  return duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace isola
