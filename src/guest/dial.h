// Op::dial with more than a port: a unix socket inside, by its path. Dial (messages.h) is the beginning of it on the
// wire, so a guest tells them apart by their length.
#pragma once

#include <cstdint>
#include <string>

namespace isola::guest {

struct DialPath {
  uint16_t port = 0;  // 0
  std::string path;   // absolute
  template <typename A>
  void fields(A& a) {
    a(port, path);
  }
};

}  // namespace isola::guest
