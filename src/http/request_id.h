// The name of a request in logs and errors: the client's own if it is harmless text, else 16 hex digits.
#pragma once

#include <string>
#include <string_view>

namespace isola::http {

std::string request_id(std::string_view from_client);
uint64_t random_u64();  // good for names, not for secrets

}  // namespace isola::http
