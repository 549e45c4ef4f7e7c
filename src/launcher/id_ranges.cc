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
std::string name_of(uint32_t base) { return std::to_string((base - IdRanges::kFirst) / 65536); }

// What the file says: the owner, and behind a newline the sandbox.
std::string label(const std::string& owner, const std::string& sandbox) {
  return sandbox.empty() ? owner : owner + "\n" + sandbox;
}
}  // namespace

Result<IdRanges> IdRanges::open(const std::string& owner, const std::string& folder) {
  IdRanges ranges;
  ISOLA_TRY(ranges.files_, NameFiles::open(folder, 0755));
  ranges.owner_ = owner;
  ranges.next_ = static_cast<uint32_t>(::getpid()) * 97 % kCount;
  return ranges;
}

Result<uint32_t> IdRanges::take(const std::string& sandbox) {
  if (int e = kernel::fault::at("id_range")) return sys_error("cannot take a range of ids", e);
  for (uint32_t tried = 0; tried < kCount; ++tried) {
    uint32_t base = kFirst + next_ * 65536;
    next_ = (next_ + 1) % kCount;
    auto taken = files_.add(name_of(base), label(owner_, sandbox));
    if (taken) return base;
    if (taken.error().code != Code::exists) return std::unexpected(taken.error().in("cannot take a range of ids"));
  }
  return fail(Code::exhausted, "all id ranges of this machine are in use (" + std::to_string(kCount) + " sandboxes)");
}

void IdRanges::give_back(uint32_t base) { files_.remove(name_of(base)); }

Result<void> IdRanges::keep(uint32_t base, const std::string& sandbox) {
  auto kept = files_.add(name_of(base), label(owner_, sandbox));
  if (!kept && kept.error().code != Code::exists) return std::unexpected(kept.error().in("cannot keep a range of ids"));
  return {};
}

Result<std::vector<IdRanges::Taken>> IdRanges::mine() const {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(files_.folder().c_str()), ::closedir);
  if (!dir) return sys_error("cannot read " + files_.folder());
  std::vector<Taken> taken;
  while (dirent* entry = ::readdir(dir.get())) {
    std::string name = entry->d_name;
    if (NameFiles::is_aside(name)) continue;
    auto text = read_file(files_.folder() + "/" + name);
    uint32_t number = 0;
    auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
    if (!text) continue;
    std::string_view said(*text);
    size_t line = std::min(said.find('\n'), said.size());
    if (said.substr(0, line) != owner_) continue;
    if (bad == std::errc() && end == name.data() + name.size() && number < kCount)
      taken.push_back({kFirst + number * 65536, std::string(said.substr(std::min(line + 1, said.size())))});
  }
  return taken;
}

}  // namespace isola::launcher
