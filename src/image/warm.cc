#include "image/warm.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/fd.h"

namespace isola::image {

namespace {

// In the order in which a first command wants them. Links among them lead to others of the list.
constexpr const char* kFolders[] = {"etc",
                                    "etc/profile.d",
                                    "lib64",
                                    "usr/lib64",
                                    "lib",
                                    "usr/lib",
                                    "usr/lib/x86_64-linux-gnu",
                                    "usr/lib/aarch64-linux-gnu",
                                    "bin",
                                    "usr/bin",
                                    "usr/lib/locale",
                                    "usr/lib/locale/C.utf8",
                                    "usr/local/bin"};
constexpr const char* kCore[] = {"bin/bash",
                                 "bin/sh",
                                 "usr/bin/env",
                                 "usr/bin/id",
                                 "usr/bin/cat",
                                 "usr/bin/echo",
                                 "usr/bin/ls",
                                 "lib64/ld-linux-x86-64.so.2",
                                 "lib/ld-linux-aarch64.so.1",
                                 "etc/ld.so.cache",
                                 "etc/profile",
                                 "etc/bash.bashrc",
                                 "etc/passwd",
                                 "etc/group",
                                 "etc/nsswitch.conf",
                                 "usr/share/locale/locale.alias",
                                 "home/user/.profile",
                                 "home/user/.bashrc",
                                 "root/.profile",
                                 "root/.bashrc"};
constexpr const char* kCoreTrees[] = {"usr/lib/locale", "etc/profile.d", "home/user"};
constexpr const char* kCoreFolders[] = {"lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"};
constexpr const char* kCoreLibraries[] = {
    "libc.so.6",   "libtinfo.so.6", "libselinux.so.1", "libpcre2-8.so.0", "libm.so.6",
    "libacl.so.1", "libattr.so.1",  "libdl.so.2",      "libpthread.so.0", "gconv/gconv-modules.cache"};
constexpr uint64_t kMostCore = 16 << 20;
constexpr size_t kMostCoreEntries = 2000, kMostEntries = 50'000;  // looked at, whoever made the image
constexpr int kDeepest = 3;                                       // below a folder of Python's own library

using OpenDir = std::unique_ptr<DIR, int (*)(DIR*)>;

// As it looks from inside: a link on the way leads nowhere else. `at`: the root, or a folder below it for a plain name.
Fd open_inside(int at, const char* path, int flags) {
  open_how how{.flags = static_cast<uint64_t>(flags | O_RDONLY | O_CLOEXEC),
               .mode = 0,
               .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS};
  return Fd(static_cast<int>(::syscall(SYS_openat2, at, path, &how, sizeof how)));
}

OpenDir open_folder(int at, const char* path) {
  Fd fd = open_inside(at, path, O_DIRECTORY | O_NOFOLLOW);
  DIR* folder = fd ? ::fdopendir(fd.get()) : nullptr;
  if (folder) (void)fd.release();
  return OpenDir(folder, ::closedir);
}

struct File {
  off_t size = 0;
  std::string name;
  bool operator<(const File& other) const { return size < other.size; }
};

class Warmer {
 public:
  Warmer(uint64_t most, size_t entries) : left_(most), entries_(entries), buffer_(256 << 10) {}

  void folder(int at, const char* path, int depth) {
    OpenDir folder = open_folder(at, path);
    if (!folder) return;
    int fd = ::dirfd(folder.get());
    std::vector<File> files;
    std::vector<std::string> below;
    while (const dirent* entry = entries_ > 0 ? ::readdir(folder.get()) : nullptr) {
      --entries_;
      struct stat st{};
      std::string name = entry->d_name;
      if (name == "." || name == ".." || ::fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) continue;
      if (S_ISREG(st.st_mode)) files.push_back({st.st_size, name});
      if (S_ISDIR(st.st_mode) && depth > 0 && name != "test" && name != "dist-packages") below.push_back(name);
    }
    std::sort(files.begin(), files.end());
    for (const auto& file : files) read(fd, file);
    for (const auto& name : below) this->folder(fd, name.c_str(), depth - 1);
  }

  // Whatever links lead to, as it looks from inside.
  void named(int root, const std::string& path) {
    Fd fd = open_inside(root, path.c_str(), O_NONBLOCK);
    struct stat st{};
    if (fd && ::fstat(fd.get(), &st) == 0 && S_ISREG(st.st_mode)) read_all(fd.get(), 0, st.st_size);
  }

  bool may_look() { return entries_ > 0 && --entries_ > 0; }
  uint64_t seen() const { return seen_; }

 private:
  void read(int at, const File& file) {
    if (left_ == 0 || file.size == 0) return;
    Fd fd(::openat(at, file.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!fd) return;
    auto size = std::min(static_cast<uint64_t>(file.size), left_);
    void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), 0);
    if (mapped == MAP_FAILED) return;
    pages_.resize((size + kPage - 1) / kPage);
    bool known = ::mincore(mapped, size, pages_.data()) == 0;
    ::munmap(mapped, size);
    for (size_t i = 0; known && i < pages_.size();) {
      size_t end = i;
      while (end < pages_.size() && !(pages_[end] & 1)) ++end;
      if (end > i) read_all(fd.get(), static_cast<off_t>(i * kPage), static_cast<off_t>(std::min(end * kPage, size)));
      i = end + 1;
    }
  }

  void read_all(int fd, off_t from, off_t to) {
    while (left_ > 0 && from < to) {
      auto want = std::min<uint64_t>({buffer_.size(), left_, static_cast<uint64_t>(to - from)});
      ssize_t n = ::pread(fd, buffer_.data(), want, from);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      from += n;
      left_ -= static_cast<uint64_t>(n);
      seen_ += static_cast<uint64_t>(n);
    }
  }

  static constexpr size_t kPage = 4096;

  uint64_t left_;
  size_t entries_;
  uint64_t seen_ = 0;
  std::vector<char> buffer_;
  std::vector<unsigned char> pages_;
};

}  // namespace

uint64_t warm_budget() {
  struct sysinfo machine{};
  if (::sysinfo(&machine) < 0) return 0;
  return std::min<uint64_t>(uint64_t{machine.totalram} * machine.mem_unit / 32, 512 << 20);
}

void warm_core(const std::string& root) {
  Fd at(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!at) return;
  Warmer warmer(kMostCore, kMostCoreEntries);
  for (const char* path : kCore) warmer.named(at.get(), path);
  for (const char* path : kCoreTrees) warmer.folder(at.get(), path, 1);
  for (const char* folder : kCoreFolders)
    for (const char* name : kCoreLibraries) warmer.named(at.get(), std::string(folder) + "/" + name);
}

Result<uint64_t> warm(const std::string& root, uint64_t most) {
  Fd at(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!at) return sys_error("cannot open " + root);
  Warmer warmer(most, kMostEntries);
  for (const char* path : kFolders) warmer.folder(at.get(), path, 0);
  // Last, because it is the largest: an interpreter's library.
  OpenDir lib = open_folder(at.get(), "usr/lib");
  while (const dirent* entry = lib && warmer.may_look() ? ::readdir(lib.get()) : nullptr)
    if (std::string_view(entry->d_name).starts_with("python3."))
      warmer.folder(::dirfd(lib.get()), entry->d_name, kDeepest);
  return warmer.seen();
}

}  // namespace isola::image
