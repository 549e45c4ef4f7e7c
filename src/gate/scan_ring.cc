#include "gate/scan_ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace isola::gate {

namespace {
constexpr size_t kRingSize = kScanSlots * kMaxScanData;
}  // namespace

Result<ScanMemory> ScanMemory::map(const Fd& fd, bool writable) {
  void* at = ::mmap(nullptr, kRingSize, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return sys_error("cannot map the memory of a channel of streams");
  return ScanMemory(static_cast<char*>(at));
}

ScanMemory::~ScanMemory() {
  if (at_) ::munmap(at_, kRingSize);
}

Result<ScanRing> ScanRing::make() {
  Fd fd(::memfd_create("isola-scan", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ::ftruncate(fd.get(), kRingSize) < 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
    return sys_error("cannot make the memory of a channel of streams");
  ISOLA_TRY(ScanMemory memory, ScanMemory::map(fd, true));
  return ScanRing(std::move(fd), std::move(memory));
}

bool ScanRing::taken(uint64_t count) {
  if (count < taken_ || count > laid_) return false;
  taken_ = count;
  return true;
}

Result<ScanRingView> ScanRingView::map(const Fd& fd) {
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  struct stat st{};
  // A file that became shorter would end whoever reads it.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &st) < 0 || st.st_size != kRingSize)
    return fail(Code::invalid, "the memory of a channel of streams is none that stays as it is");
  ISOLA_TRY(ScanMemory memory, ScanMemory::map(fd, false));
  return ScanRingView(std::move(memory));
}

std::optional<std::string_view> ScanRingView::take(size_t length) {
  if (length > kMaxScanData) return std::nullopt;
  return std::string_view(memory_.slot(taken_++), length);
}

}  // namespace isola::gate
