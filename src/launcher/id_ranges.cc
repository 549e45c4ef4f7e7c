#include "launcher/id_ranges.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/file.h"
#include "kernel/fault.h"

namespace isola::launcher {

namespace {
std::string path_of(const std::string& folder, uint32_t base) {
  return folder + "/" + std::to_string((base - IdRanges::kFirst) / 65536);
}

// What the symlink says: the owner, and behind a newline the sandbox.
std::string label(const std::string& owner, const std::string& sandbox) {
  return sandbox.empty() ? owner : owner + "\n" + sandbox;
}
}  // namespace

Result<IdRanges> IdRanges::open(const std::string& owner, const std::string& folder) {
  ISOLA_CHECK(make_dirs(folder, 0755));
  IdRanges ranges;
  ranges.folder_ = folder;
  ranges.owner_ = owner;
  ranges.next_ = static_cast<uint32_t>(::getpid()) * 97 % kCount;
  return ranges;
}

Result<uint32_t> IdRanges::take(const std::string& sandbox) {
  if (int e = kernel::fault::at("id_range")) return sys_error("cannot take a range of ids", e);
  for (uint32_t tried = 0; tried < kCount; ++tried) {
    uint32_t base = kFirst + next_ * 65536;
    next_ = (next_ + 1) % kCount;
    if (::symlink(label(owner_, sandbox).c_str(), path_of(folder_, base).c_str()) == 0) return base;
    if (errno != EEXIST) return sys_error("cannot take a range of ids in " + folder_);
  }
  return fail(Code::exhausted, "all id ranges of this machine are in use (" + std::to_string(kCount) + " sandboxes)");
}

void IdRanges::give_back(uint32_t base) { ::unlink(path_of(folder_, base).c_str()); }

Result<void> IdRanges::keep(uint32_t base, const std::string& sandbox) {
  if (::symlink(label(owner_, sandbox).c_str(), path_of(folder_, base).c_str()) < 0 && errno != EEXIST)
    return sys_error("cannot keep a range of ids");
  return {};
}

Result<std::vector<IdRanges::Taken>> IdRanges::mine() const {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder_.c_str()), ::closedir);
  if (!dir) return sys_error("cannot read " + folder_);
  std::vector<Taken> taken;
  while (dirent* entry = ::readdir(dir.get())) {
    std::string name = entry->d_name;
    char target[4096];
    ssize_t n = ::readlink((folder_ + "/" + name).c_str(), target, sizeof target);
    uint32_t number = 0;
    auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (n < 0) continue;
    std::string_view said(target, static_cast<size_t>(n));
    size_t line = std::min(said.find('\n'), said.size());
    if (said.substr(0, line) != owner_) continue;
    if (bad == std::errc() && end == name.data() + name.size() && number < kCount)
      taken.push_back({kFirst + number * 65536, std::string(said.substr(std::min(line + 1, said.size())))});
  }
  return taken;
}

}  // namespace isola::launcher
