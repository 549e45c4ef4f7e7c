// Names of things. A sandbox id is `i` and 20 characters of [a-z0-9], random.
#pragma once

#include <string>
#include <string_view>

namespace isola {

std::string new_sandbox_id();
bool is_sandbox_id(std::string_view id);
bool is_digest(std::string_view text);  // 64 lower-case hex digits: a SHA-256

}  // namespace isola
