// The one buffer into which bytes are read before they go where they belong: a single thread needs no second, and each
// would stay in memory once touched.
#pragma once

#include <cstddef>

namespace isola::guest {

inline char scratch[64 << 10];

}  // namespace isola::guest
