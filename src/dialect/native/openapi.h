// The contract, as it is served: openapi.json of this folder, compiled in.
#pragma once

#include <string_view>

namespace isola::native {
std::string_view openapi_text();
}
