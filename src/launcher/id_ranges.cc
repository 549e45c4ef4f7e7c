#include "launcher/id_ranges.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>

#include "base/file.h"
#include "image/file_lock.h"
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

void IdRanges::give_back(uint32_t base) {
  if (auto label = read(name_of(base)); label && is_mine(label->owner)) files_.remove(name_of(base));
}

Result<void> IdRanges::keep(uint32_t base, const std::string& sandbox) {
  auto kept = files_.add(name_of(base), label(owner_, sandbox));
  if (!kept && kept.error().code != Code::exists) return std::unexpected(kept.error().in("cannot keep a range of ids"));
  if (kept) return {};
  ISOLA_TRY(Label there, read(name_of(base)));
  if (is_mine(there.owner)) return {};
  return fail(Code::exists, "the ids from " + std::to_string(base) + " on are taken by " + there.owner);
}

// A data directory has more than one name: with a slash behind it, or through a link.
bool IdRanges::is_mine(const std::string& owner) const {
  if (owner == owner_) return true;
  struct stat theirs{}, ours{};
  return ::stat(owner.c_str(), &theirs) == 0 && ::stat(owner_.c_str(), &ours) == 0 && theirs.st_dev == ours.st_dev &&
         theirs.st_ino == ours.st_ino;
}

Result<IdRanges::Label> IdRanges::read(const std::string& name) const {
  uint32_t number = 0;
  auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (bad != std::errc() || end != name.data() + name.size() || number >= kCount)
    return fail(Code::invalid, "not the name of a range of ids");
  ISOLA_TRY(std::string text, read_file(files_.folder() + "/" + name));
  size_t line = std::min(text.find('\n'), text.size());
  return Label{kFirst + number * 65536, text.substr(0, line), text.substr(std::min(line + 1, text.size()))};
}

Result<std::vector<IdRanges::Label>> IdRanges::all() const {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(files_.folder().c_str()), ::closedir);
  if (!dir) return sys_error("cannot read " + files_.folder());
  std::vector<Label> all;
  while (dirent* entry = ::readdir(dir.get()))
    if (auto label = read(entry->d_name)) all.push_back(std::move(*label));
  return all;
}

Result<std::vector<IdRanges::Taken>> IdRanges::mine() const {
  ISOLA_TRY(auto labels, all());
  std::vector<Taken> taken;
  for (const auto& label : labels)
    if (is_mine(label.owner)) taken.push_back({label.base, label.sandbox});
  return taken;
}

Result<void> IdRanges::sweep(const std::function<bool(const std::string& sandbox)>& lives) {
  // One launcher at a time: what one has freed another may have taken before a second one gets to it.
  auto lock = image::FileLock::try_take(files_.folder() + "/.sweep");
  if (!lock && lock.error().sys_errno == EWOULDBLOCK) return {};
  if (!lock) return std::unexpected(lock.error());
  ISOLA_TRY(auto labels, all());
  for (const auto& label : labels)
    if (!is_mine(label.owner) && ::access(label.owner.c_str(), F_OK) < 0 && errno == ENOENT && !lives(label.sandbox))
      files_.remove(name_of(label.base));
  return {};
}

}  // namespace isola::launcher
