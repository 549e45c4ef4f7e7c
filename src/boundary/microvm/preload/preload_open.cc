// Loaded into QEMU when a machine is restored, whose memory is the image's file, mapped privately. Two things QEMU does
// with such a file do not go together with an image that others are restored from, too, and that is mounted read-only:
//
// - It opens it for writing (before version 8.2 there is no word for anything else). A private mapping needs nothing
// but
//   reading.
// - It punches holes into it for memory that the guest gives back. What is left of that is what it does next: it throws
//   away its own copy of the page (MADV_DONTNEED), and what the page then holds nobody relies on, since it is free.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>

namespace {

constexpr char kMemory[] = "/memory/ram.img";  // boundary/microvm/command_line.h
int memory_fd = -1;

int open_with(const char* symbol, const char* path, int flags, mode_t mode) {
  using Open = int (*)(const char*, int, ...);
  auto* real = reinterpret_cast<Open>(::dlsym(RTLD_NEXT, symbol));
  if (!real) return errno = ENOSYS, -1;
  if (std::strcmp(path, kMemory) != 0) return real(path, flags, mode);
  return memory_fd = real(path, (flags & ~O_ACCMODE) | O_RDONLY, mode);
}

int allocate_with(const char* symbol, int fd, int mode, off_t at, off_t size) {
  if (fd >= 0 && fd == memory_fd) return 0;
  using Allocate = int (*)(int, int, off_t, off_t);
  auto* real = reinterpret_cast<Allocate>(::dlsym(RTLD_NEXT, symbol));
  return real ? real(fd, mode, at, size) : (errno = ENOSYS, -1);
}

mode_t mode_in(int flags, va_list more) { return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0; }

}  // namespace

#define ISOLA_SHOWN extern "C" __attribute__((visibility("default")))

ISOLA_SHOWN int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_in(flags, more);
  va_end(more);
  return open_with("open", path, flags, mode);
}

ISOLA_SHOWN int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = mode_in(flags, more);
  va_end(more);
  return open_with("open64", path, flags, mode);
}

// What `open` without a mode becomes where a distribution builds with _FORTIFY_SOURCE, as all of them do.
// NOLINTBEGIN(bugprone-reserved-identifier): those are its names.
ISOLA_SHOWN int __open_2(const char* path, int flags) { return open_with("open", path, flags, 0); }
ISOLA_SHOWN int __open64_2(const char* path, int flags) { return open_with("open64", path, flags, 0); }
// NOLINTEND(bugprone-reserved-identifier)

ISOLA_SHOWN int fallocate(int fd, int mode, off_t at, off_t size) {
  return allocate_with("fallocate", fd, mode, at, size);
}
ISOLA_SHOWN int fallocate64(int fd, int mode, off_t at, off_t size) {
  return allocate_with("fallocate64", fd, mode, at, size);
}
