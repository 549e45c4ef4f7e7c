#include "boundary/box/box.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "boundary/box/archive.h"
#include "boundary/jail/cell.h"
#include "boundary/jail/stage.h"

namespace isola::boundary::box {

jail::MountRule bare_root(const std::string& size, const std::string& inodes) {
  return {.target = "",
          .from = jail::MountRule::From::filesystem,
          .source = "tmpfs",
          .attributes = kQuiet,
          .options = {{"size", size}, {"nr_inodes", inodes}, {"mode", "0755"}}};
}

Result<void> Boxed::protect(uint64_t capabilities, uint32_t open_files, std::string filter_hash) {
  protections_.id_count = jail::kIdCount;
  protections_.capabilities = capabilities;
  protections_.badge = 0;
  protections_.filter_hash = std::move(filter_hash);
  protections_.open_files = open_files;
  ISOLA_TRY(protections_.network, network_.expected());
  return {};
}

Result<void> Boxed::verify_limits(const Limits& wanted, const kernel::CgroupLimits& installed) const {
  jail::Protections now = protections_;
  now.limits = jail::group_limits(wanted);
  return jail::verify_around(now, installed, now.network);
}

Result<std::unique_ptr<Cell>> Boxed::adopt(const CellName& name) {
  ISOLA_TRY(Fd pidfd, kernel::open_pidfd(name.process));
  auto cell = std::make_unique<jail::JailCell>(name.process, std::move(pidfd), false, kind());
  cell->set_handle(name.handle);
  cell->set_network(&network_);
  return cell;
}

namespace {

Result<void> add_modules(Archive& archive, const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) names.push_back(file.path().filename());
  if (error) return fail(Code::not_found, "cannot list " + folder);
  std::ranges::sort(names);
  archive.folder("modules");
  for (const auto& name : names) {
    ISOLA_TRY(std::string bytes, read_file(folder + "/" + name, 64 << 20));
    archive.file("modules/" + name, bytes, 0400);
  }
  return {};
}

}  // namespace

Result<void> put_archive(const std::string& to, const std::string& modules) {
  const std::string programs = std::string(jail::kBoxPrograms) + "/";
  Archive archive;
  ISOLA_TRY(std::string guest, read_file(programs + "isola-guest", 64 << 20));
  archive.file("init", guest, 0755);
  for (const char* folder : {"dev", "proc", "sys", "lower", "disk", "root", "isola"}) archive.folder(folder);
  for (const char* name : {"isola-rand.so", "openssl.cnf"}) {
    if (::access((programs + name).c_str(), F_OK) < 0) continue;  // a stage without them
    ISOLA_TRY(std::string bytes, read_file(programs + name));
    archive.file(std::string("isola/") + name, bytes, 0444);
  }
  if (!modules.empty()) ISOLA_CHECK(add_modules(archive, modules));
  Fd file(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0444));
  if (!file) return sys_error("cannot put the kernel's archive on the stage");
  return write_all(file.get(), archive.take());
}

Result<uint32_t> open_files_of(const CellName& name) {
  if (name.handle.empty()) return Limits().open_files;  // made before it was written down
  uint32_t number = 0;
  auto [end, wrong] = std::from_chars(name.handle.data(), name.handle.data() + name.handle.size(), number);
  if (wrong != std::errc() || *end != '\0' || number == 0)
    return fail(Code::corrupt, "it is not known how many files the sandbox may have open");
  return number;
}

}  // namespace isola::boundary::box
