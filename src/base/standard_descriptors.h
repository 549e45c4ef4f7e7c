// Standard input, output and error are taken: the first thing of a program that may be started with one of them closed.
//
//   int main() {
//     if (!take_standard_descriptors()) return 1;
#pragma once

#include <fcntl.h>

namespace isola {

// What is opened next would land where one is closed, and be written to, read from and inherited as if it were what the
// caller gave. False: there is no /dev/null, and nothing may go on.
inline bool take_standard_descriptors() {
  for (int fd = 0; fd < 3; ++fd)
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) return false;
  return true;
}

}  // namespace isola
