// Where isola-kernels listens inside a sandbox. Only root there may connect, and our guest is root.
#pragma once

#include <string_view>

namespace isola::interpreter {

inline constexpr std::string_view kFolder = "/run/isola-kernels";
inline constexpr std::string_view kSocket = "/run/isola-kernels/socket";
inline constexpr std::string_view kProgram = "/usr/local/lib/isola/isola-kernels";

}  // namespace isola::interpreter
