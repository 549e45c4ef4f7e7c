#include "boundary/box/archive.h"

#include <fmt/format.h>

namespace isola::boundary::box {

void Archive::add(std::string_view name, std::string_view bytes, uint32_t mode) {
  auto pad = [&] { out_.append((4 - out_.size() % 4) % 4, '\0'); };
  // inode mode uid gid links time size, two devices, length of the name with its end, a sum that is not used
  out_ += fmt::format("070701{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}{:08X}", inode_++,
                      mode, 0, 0, 1, 0, bytes.size(), 0, 0, 0, 0, name.size() + 1, 0);
  out_ += name;
  out_ += '\0';
  pad();
  out_ += bytes;
  pad();
}

std::string Archive::take() {
  add("TRAILER!!!", {}, 0);
  return std::move(out_);
}

}  // namespace isola::boundary::box
