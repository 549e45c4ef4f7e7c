// A TAP: a network device whose other end is a descriptor that carries Ethernet frames, one per read or write.
//
//   ISOLA_TRY(Fd tap, make_tap("gate", 77));   // in the calling thread's network namespace; it goes with the
//   descriptor
#pragma once

#include <string>

#include "base/error.h"
#include "base/fd.h"

namespace isola::kernel {

// The descriptor does not block and is closed by exec. `number`: the index of the device.
Result<Fd> make_tap(const std::string& name, int number);

}  // namespace isola::kernel
