// Names of things, random: a sandbox id is `i` and 20 characters of [a-z0-9], a project's `p` and 20, an API key's name
// `k` and 12, a command's `c` and 12, an image's `m` and 20, a volume's `v` and 20,
// a webhook's `w` and 20.
#pragma once

#include <string>
#include <string_view>

namespace isola {

std::string new_sandbox_id();
std::string new_project_id();
std::string new_key_id();
std::string new_command_id();
std::string new_image_id();
std::string new_volume_id();
std::string new_template_id();
std::string new_build_id();
std::string new_binding_id();  // `g` and 20
std::string new_webhook_id();
std::string new_token();  // 40 random hex digits: a bearer secret
bool is_sandbox_id(std::string_view id);
bool is_image_id(std::string_view id);
bool is_volume_id(std::string_view id);
bool is_digest(std::string_view text);  // 64 lower-case hex digits: a SHA-256

}  // namespace isola
