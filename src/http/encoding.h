// Which replies go out compressed: those whose type packs well, to clients that say that they can unpack them.
#pragma once

#include <string_view>

namespace isola::http {

// Text of some kind. What is packed already, or nobody knows, is sent as it is.
bool compressible(std::string_view type);

// Whether an Accept-Encoding names gzip and does not refuse it with a weight of nothing.
bool accepts_gzip(std::string_view accepted);

}  // namespace isola::http
