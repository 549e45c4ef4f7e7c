// Where this machine's core dumps go, by kernel.core_pattern: a sandbox must not be able to send one to a program of
// the host.
//
//   if (core_road("|/usr/lib/systemd/systemd-coredump %P") == CoreRoad::program) …
#pragma once

#include <cstdint>
#include <string_view>

namespace isola::cli {

enum class CoreRoad : uint8_t {
  file,     // in the crashed process's own world: RLIMIT_CORE holds
  program,  // `|…`: a program that the kernel starts as root, outside; the limit that sandboxes have (1) keeps it away
  socket,   // `@…` (Linux 6.16): a socket of the host, to which the kernel connects whatever the limit is
};
CoreRoad core_road(std::string_view pattern);

}  // namespace isola::cli
