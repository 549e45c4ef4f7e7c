// Names of things. A sandbox id is `i` and 20 characters of [a-z0-9], random.
#pragma once

#include <string>
#include <string_view>

namespace isola {

std::string new_sandbox_id();
std::string new_name(char first, size_t length);  // `first` and `length` random characters of [a-z0-9]
std::string new_token();                          // 40 random hex digits: a bearer secret
bool is_sandbox_id(std::string_view id);
bool is_digest(std::string_view text);  // 64 lower-case hex digits: a SHA-256

}  // namespace isola
