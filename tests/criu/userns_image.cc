#include "userns_image.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/fd.h"
#include "base/file.h"
#include "protobuf.h"

namespace isola::criu {

namespace {

// userns_entry {repeated extent uid_map = 1, gid_map = 2}; extent {first = 1, lower_first = 2, count = 3}
std::string user_namespace(uint32_t base, uint32_t count) {
  ProtoWriter extent, entry;
  extent.number(1, 0);
  extent.number(2, base);
  extent.number(3, count);
  std::string map = extent.take();
  entry.text(1, map);
  entry.text(2, map);
  return entry.take();
}

}  // namespace

Result<void> link_image(const std::string& from, const std::string& to, uint32_t base, uint32_t count) {
  ISOLA_CHECK(make_dirs(to, 0755));
  std::error_code error;
  int maps = 0;
  for (const auto& file : std::filesystem::directory_iterator(from, error)) {
    std::string name = file.path().filename();
    if (!name.ends_with(".img")) continue;
    if (!name.starts_with("userns-")) {
      if (::link(file.path().c_str(), (to + "/" + name).c_str()) < 0) return sys_error("cannot link " + name);
      continue;
    }
    // Two words of magic, the size of the one entry, the entry.
    ISOLA_TRY(std::string image, read_file(file.path()));
    constexpr size_t kMagic = 8;
    if (image.size() < kMagic + 4) return fail(Code::corrupt, name + " is too short");
    std::string entry = user_namespace(base, count);
    uint32_t size = static_cast<uint32_t>(entry.size());
    image.resize(kMagic + 4);
    std::memcpy(image.data() + kMagic, &size, sizeof size);
    Fd fd(::open((to + "/" + name).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd) return sys_error("cannot create " + name);
    ISOLA_CHECK(write_all(fd.get(), image + entry));
    ++maps;
  }
  if (error) return fail(Code::not_found, "cannot list " + from);
  if (maps != 1) return fail(Code::corrupt, "a checkpoint of a jail has one user namespace");
  return {};
}

}  // namespace isola::criu
