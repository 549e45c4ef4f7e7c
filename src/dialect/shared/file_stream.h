// A file of a sandbox on its way to a client.
#pragma once

#include <string_view>

#include "base/task.h"
#include "http/exchange.h"
#include "sandbox/guest_link.h"

namespace isola::dialect {

// What comes out of the channel of a guest's `read`, whose reply has been heard, as a body of unknown length. Ends as
// the file does; a client that goes away, or a file that cannot be read to its end, is nobody's error any more.
Task<void> stream_file(http::Exchange& ex, sandbox::ChannelPtr channel, std::string_view type);

}  // namespace isola::dialect
