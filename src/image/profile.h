// /etc/profile without a process: Debian's asks `id -u` in every login shell, which is half of what such a shell takes
// to start. bash knows its user by itself (EUID); others still ask.
#pragma once

#include <string>

namespace isola::image {

std::string without_asking(std::string profile);

}  // namespace isola::image
