// The two users whose numbers are the same everywhere.
#pragma once

#include <sys/types.h>

namespace isola::launcher {

inline constexpr uid_t kUser = 1000;     // inside: whom templates run programs as
inline constexpr uid_t kNobody = 65534;  // on the host: owns nothing

}  // namespace isola::launcher
