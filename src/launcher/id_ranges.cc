#include "launcher/id_ranges.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/file.h"
#include "kernel/fault.h"

namespace isola::launcher {

namespace {
std::string path_of(const std::string& folder, uint32_t base) {
  return folder + "/" + std::to_string((base - IdRanges::kFirst) / 65536);
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

Result<uint32_t> IdRanges::take() {
  if (int e = kernel::fault::at("id_range")) return sys_error("cannot take a range of ids", e);
  for (uint32_t tried = 0; tried < kCount; ++tried) {
    uint32_t base = kFirst + next_ * 65536;
    next_ = (next_ + 1) % kCount;
    Fd file(::open(path_of(folder_, base).c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (file) {
      (void)write_all(file.get(), owner_ + "\n");  // for people only
      return base;
    }
    if (errno != EEXIST) return sys_error("cannot take a range of ids in " + folder_);
  }
  return fail(Code::exhausted, "all id ranges of this machine are in use (" + std::to_string(kCount) + " sandboxes)");
}

void IdRanges::give_back(uint32_t base) { ::unlink(path_of(folder_, base).c_str()); }

Result<void> IdRanges::keep(uint32_t base) {
  Fd file(::open(path_of(folder_, base).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
  if (!file) return sys_error("cannot keep a range of ids");
  return {};
}

}  // namespace isola::launcher
