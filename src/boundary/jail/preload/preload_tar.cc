// A library for criu's LD_PRELOAD: criu carries the contents of a tmpfs over with tar and gzip, which takes some
// milliseconds each way, and the one of a jail (/dev/shm) is nearly always empty. Of an empty one the archive is known,
// and there is nothing to be taken out of it. It is an ordinary archive: a criu without this library reads it as well.
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace {

// 10240 times 0, which is how tar says that there is nothing (more), as gzip packs it.
constexpr unsigned char kNothing[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xed, 0xc1,
                                      0x01, 0x0d, 0x00, 0x00, 0x00, 0xc2, 0xa0, 0xf7, 0x4f, 0x6d, 0x0e, 0x37,
                                      0xa0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x80, 0x37,
                                      0x03, 0x9a, 0xde, 0x1d, 0x27, 0x00, 0x28, 0x00, 0x00};

bool has(char* const* argv, const char* word) {
  for (; *argv; ++argv)
    if (std::strcmp(*argv, word) == 0) return true;
  return false;
}

// As it is right after it was mounted: its own mode and owner would be in an archive, too.
bool untouched(int folder) {
  struct stat st{};
  if (::fstat(folder, &st) < 0 || st.st_mode != (S_IFDIR | 01777) || st.st_uid != 0 || st.st_gid != 0) return false;
  if (::flistxattr(folder, nullptr, 0) != 0) return false;
  int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = fd < 0 ? nullptr : ::fdopendir(fd);
  if (!dir) return false;
  int entries = 0;
  while (entries < 3 && ::readdir(dir)) ++entries;
  ::closedir(dir);
  return entries == 2;  // itself and its parent
}

bool holds_nothing(int archive) {
  unsigned char bytes[sizeof kNothing + 1];
  const off_t at = ::lseek(archive, 0, SEEK_CUR);
  return at >= 0 && ::pread(archive, bytes, sizeof bytes, at) == static_cast<ssize_t>(sizeof kNothing) &&
         std::memcmp(bytes, kNothing, sizeof kNothing) == 0;
}

}  // namespace

// Called in a child of criu's, with the folder or the archive as its standard input.
extern "C" int execvp(const char* file, char* const argv[]) noexcept {
  using Function = int (*)(const char*, char* const*);
  static const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "execvp"));
  static const bool plain = std::getenv("ISOLA_CRIU_PLAIN") != nullptr;  // to be compared with
  if (!plain && std::strcmp(file, "tar") == 0) {
    if (has(argv, "--create") && untouched(STDIN_FILENO))
      ::_exit(::write(STDOUT_FILENO, kNothing, sizeof kNothing) == static_cast<ssize_t>(sizeof kNothing) ? 0 : 1);
    if (has(argv, "--extract") && holds_nothing(STDIN_FILENO)) ::_exit(0);
  }
  return real(file, argv);
}
