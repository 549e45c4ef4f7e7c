// The archive that a kernel unpacks before anything else (initramfs): the cpio form "newc", not compressed.
//
//   Archive archive;
//   archive.folder("isola");
//   archive.file("init", program, 0755);
//   write_file("initrd", archive.take());
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace isola::boundary::box {

class Archive {
 public:
  void folder(std::string_view name) { add(name, {}, 040755); }
  void file(std::string_view name, std::string_view bytes, uint32_t mode) { add(name, bytes, 0100000 | mode); }
  std::string take();  // ends it

 private:
  void add(std::string_view name, std::string_view bytes, uint32_t mode);
  std::string out_;
  uint32_t inode_ = 1;
};

}  // namespace isola::boundary::box
