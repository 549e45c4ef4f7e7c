// What is in a file, and what is known about it.
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/openat2.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../topics.h"

namespace isola::behaviour {
namespace {

std::string contents(const char* name = "file") { return slurp(name); }
off_t position(int fd) { return ::lseek(fd, 0, SEEK_CUR); }
struct stat status(const char* name) {
  struct stat s{};
  ::lstat(name, &s);
  return s;
}

constexpr Check kFileChecks[] = {
    {"file-exclusive", "O_EXCL makes a new file or fails",
     [] {
       NEED("open", scratch_file());
       REFUSED("open O_EXCL", ::open("file", O_CREAT | O_EXCL | O_RDWR, 0644), EEXIST);
       return ok();
     }},
    {"file-append", "two descriptors with O_APPEND write one after the other",
     [] {
       int a = ::open("file", O_CREAT | O_APPEND | O_WRONLY, 0644), b = ::open("file", O_APPEND | O_WRONLY);
       NEED("open", a);
       NEED("open", b);
       for (int i = 0; i < 3; ++i) {
         NEED("write", ::write(a, "a", 1));
         NEED("write", ::write(b, "b", 1));
       }
       WANT(contents() == "ababab", "the writes are not in order");
       return ok();
     }},
    {"file-truncate-grows", "a file that is made longer is filled with zeros",
     [] {
       int fd = scratch_file("abc");
       NEED("ftruncate", ::ftruncate(fd, 1));
       NEED("ftruncate", ::ftruncate(fd, 4));
       WANT(contents() == std::string("a\0\0\0", 4), "other contents");
       return ok();
     }},
    {"file-truncate-read-only", "a descriptor for reading does not truncate",
     [] {
       scratch_file("abc");
       int fd = ::open("file", O_RDONLY);
       REFUSED("ftruncate", ::ftruncate(fd, 1), EINVAL);
       return ok();
     }},
    {"file-o-trunc", "O_TRUNC empties a file",
     [] {
       scratch_file("abc");
       NEED("open", ::open("file", O_WRONLY | O_TRUNC));
       WANT(status("file").st_size == 0, "it is not empty");
       return ok();
     }},
    {"file-sparse", "a hole takes no blocks",
     [] {
       int fd = scratch_file();
       NEED("pwrite", ::pwrite(fd, "x", 1, 64 << 20));
       NEED("fsync", ::fsync(fd));
       WANT(status("file").st_size == (64 << 20) + 1, "another size");
       WANT(status("file").st_blocks < 2048 * 8, "the hole takes blocks");
       return ok();
     }},
    {"file-seek-hole", "SEEK_DATA and SEEK_HOLE find data and holes",
     [] {
       int fd = scratch_file();
       NEED("pwrite", ::pwrite(fd, "x", 1, 1 << 20));
       off_t data = ::lseek(fd, 0, SEEK_DATA);
       NEED("lseek SEEK_DATA", data);
       WANT(data > 0 && data <= 1 << 20, "the data is not where it was written");
       WANT(::lseek(fd, 0, SEEK_HOLE) == 0, "no hole at the beginning");
       return ok();
     }},
    {"file-pread", "pread and pwrite leave the position alone",
     [] {
       int fd = scratch_file("abcdef");
       char c[3] = "";
       NEED("pread", ::pread(fd, c, 2, 3));
       NEED("pwrite", ::pwrite(fd, "XY", 2, 1));
       WANT(std::string(c) == "de" && position(fd) == 0 && contents() == "aXYdef", "other bytes or another position");
       return ok();
     }},
    {"file-vectors", "readv and writev take several buffers in order",
     [] {
       int fd = scratch_file();
       char one[] = "ab", two[] = "cde", a[4] = "", b[3] = "";
       iovec out[] = {{one, 2}, {two, 3}}, in[] = {{a, 3}, {b, 2}};
       WANT(::writev(fd, out, 2) == 5, "writev");
       WANT(::preadv(fd, in, 2, 0) == 5, "preadv");
       WANT(std::string(a) == "abc" && std::string(b) == "de", "other bytes");
       return ok();
     }},
    {"file-pwritev2-append", "RWF_APPEND writes at the end without O_APPEND",
     [] {
       int fd = scratch_file("abc");
       char text[] = "d";
       iovec out{text, 1};
       NEED("pwritev2", ::pwritev2(fd, &out, 1, 0, RWF_APPEND));
       WANT(contents() == "abcd", "it was written elsewhere");
       return ok();
     }},
    {"file-fallocate", "fallocate gives room, and with KEEP_SIZE not a longer file",
     [] {
       int fd = scratch_file("abc");
       NEED("fallocate KEEP_SIZE", ::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, 1 << 20));
       WANT(status("file").st_size == 3, "KEEP_SIZE changed the size");
       NEED("fallocate", ::fallocate(fd, 0, 0, 1 << 20));
       WANT(status("file").st_size == 1 << 20, "another size");
       return ok();
     }},
    {"file-punch-hole", "a punched hole reads as zeros",
     [] {
       int fd = scratch_file(std::string(16384, 'x'));
       NEED("fallocate PUNCH_HOLE", ::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096));
       std::string text = contents();
       WANT(text.size() == 16384 && text[4095] == 'x' && text[4096] == 0 && text[8192] == 'x', "other bytes");
       return ok();
     }},
    {"file-rename-replaces", "rename replaces the file of that name",
     [] {
       scratch_file("new", "a");
       int old = scratch_file("old", "b");
       NEED("rename", ::rename("a", "b"));
       WANT(contents("b") == "new", "the old contents are there");
       char text[4] = "";
       WANT(::read(old, text, 3) == 3 && std::string(text) == "old", "who has it open lost it");
       return ok();
     }},
    {"file-rename-noreplace", "RENAME_NOREPLACE leaves what is there",
     [] {
       scratch_file("", "a");
       scratch_file("", "b");
       REFUSED("renameat2", ::renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_NOREPLACE), EEXIST);
       NEED("renameat2", ::renameat2(AT_FDCWD, "a", AT_FDCWD, "c", RENAME_NOREPLACE));
       return ok();
     }},
    {"file-rename-exchange", "RENAME_EXCHANGE swaps two names",
     [] {
       scratch_file("A", "a");
       scratch_file("B", "b");
       NEED("renameat2", ::renameat2(AT_FDCWD, "a", AT_FDCWD, "b", RENAME_EXCHANGE));
       WANT(contents("a") == "B" && contents("b") == "A", "they are not swapped");
       return ok();
     }},
    {"file-unlinked-open", "an open file lives on after unlink",
     [] {
       int fd = scratch_file("abc");
       NEED("unlink", ::unlink("file"));
       struct stat s{};
       NEED("fstat", ::fstat(fd, &s));
       WANT(s.st_nlink == 0, "it still has a name");
       WANT(::pwrite(fd, "d", 1, 3) == 1, "it cannot be written");
       char text[5] = "";
       WANT(::pread(fd, text, 4, 0) == 4 && std::string(text) == "abcd", "other contents");
       return ok();
     }},
    {"file-hard-link", "a hard link is the same file",
     [] {
       scratch_file("abc");
       NEED("link", ::link("file", "other"));
       WANT(status("file").st_nlink == 2 && status("file").st_ino == status("other").st_ino, "two files");
       spill("other", "xyz");
       WANT(contents() == "xyz", "a change is not seen through the other name");
       return ok();
     }},
    {"file-symlink-loop", "links that lead to each other end in ELOOP",
     [] {
       NEED("symlink", ::symlink("a", "b"));
       NEED("symlink", ::symlink("b", "a"));
       REFUSED("open", ::open("a", O_RDONLY), ELOOP);
       return ok();
     }},
    {"file-nofollow", "O_NOFOLLOW does not open a link",
     [] {
       scratch_file();
       NEED("symlink", ::symlink("file", "link"));
       REFUSED("open", ::open("link", O_RDONLY | O_NOFOLLOW), ELOOP);
       WANT(status("link").st_size == 4, "the size of a link is not its length");
       return ok();
     }},
    {"file-tmpfile", "O_TMPFILE makes a file that can be named later",
     [] {
       int fd = ::open(".", O_TMPFILE | O_RDWR, 0644);
       NEED("open O_TMPFILE", fd);
       NEED("write", ::write(fd, "abc", 3));
       std::string name = "/proc/self/fd/" + std::to_string(fd);
       NEED("linkat", ::linkat(AT_FDCWD, name.c_str(), AT_FDCWD, "named", AT_SYMLINK_FOLLOW));
       WANT(contents("named") == "abc", "other contents");
       return ok();
     }},
    {"file-o-path", "an O_PATH descriptor names a file and reads nothing",
     [] {
       scratch_file("abc");
       int fd = ::open("file", O_PATH);
       NEED("open O_PATH", fd);
       char c;
       REFUSED("read", ::read(fd, &c, 1), EBADF);
       struct stat s{};
       NEED("fstat", ::fstat(fd, &s));
       WANT(s.st_size == 3, "another size");
       std::string again = "/proc/self/fd/" + std::to_string(fd);
       NEED("open through /proc", ::open(again.c_str(), O_RDONLY));
       return ok();
     }},
    {"file-openat2", "RESOLVE_BENEATH does not leave the folder",
     [] {
       ::mkdir("d", 0755);
       int folder = ::open("d", O_RDONLY | O_DIRECTORY);
       open_how how{.flags = O_RDONLY, .mode = 0, .resolve = RESOLVE_BENEATH};
       REFUSED("openat2", ::syscall(SYS_openat2, folder, "../file", &how, sizeof how), EXDEV);
       return ok();
     }},
    {"file-statx-birth", "statx knows when a file was made",
     [] {
       scratch_file();
       struct statx s{};
       NEED("statx", ::statx(AT_FDCWD, "file", 0, STATX_BASIC_STATS | STATX_BTIME, &s));
       WANT((s.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS, "basic fields are missing");
       WANT(s.stx_mask & STATX_BTIME, "no time of birth");
       return ok();
     }},
    {"file-times", "utimensat sets nanoseconds, and leaves what it is told to",
     [] {
       scratch_file();
       timespec both[2] = {{1000000000, 123456789}, {1100000000, 987654321}}, one[2] = {{0, UTIME_OMIT}, {5, 6}};
       NEED("utimensat", ::utimensat(AT_FDCWD, "file", both, 0));
       struct stat s = status("file");
       WANT(s.st_atim.tv_nsec == 123456789 && s.st_mtim.tv_nsec == 987654321, "nanoseconds are lost");
       NEED("utimensat", ::utimensat(AT_FDCWD, "file", one, 0));
       s = status("file");
       WANT(s.st_atim.tv_sec == 1000000000 && s.st_mtim.tv_sec == 5, "UTIME_OMIT was not taken");
       return ok();
     }},
    {"file-write-changes-mtime", "a write changes the time of the file",
     [] {
       int fd = scratch_file();
       timespec old[2] = {{1, 0}, {1, 0}};
       NEED("utimensat", ::utimensat(AT_FDCWD, "file", old, 0));
       NEED("write", ::write(fd, "x", 1));
       WANT(status("file").st_mtim.tv_sec > 1, "the time is the old one");
       return ok();
     }},
    {"file-modes", "modes with setuid and sticky bits are kept, and umask takes some",
     [] {
       scratch_file();
       NEED("chmod", ::chmod("file", 07751));
       WANT((status("file").st_mode & 07777) == 07751, "another mode");
       ::umask(027);
       NEED("open", ::open("other", O_CREAT | O_WRONLY, 0666));
       WANT((status("other").st_mode & 07777) == 0640, "umask was not taken");
       return ok();
     }},
    {"file-sync", "fsync, fdatasync, sync_file_range and syncfs work",
     [] {
       int fd = scratch_file("abc");
       NEED("fsync", ::fsync(fd));
       NEED("fdatasync", ::fdatasync(fd));
       NEED("sync_file_range", ::sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));
       NEED("syncfs", ::syncfs(fd));
       return ok();
     }},
    {"file-size-limit", "RLIMIT_FSIZE ends with SIGXFSZ, or EFBIG where that is ignored",
     [] {
       int fd = scratch_file();
       rlimit small{10, 10};
       NEED("setrlimit", ::setrlimit(RLIMIT_FSIZE, &small));
       WANT(in_child([&] { return ::pwrite(fd, "x", 1, 20) < 0 ? 1 : 0; }) == 128 + SIGXFSZ, "no SIGXFSZ");
       ::signal(SIGXFSZ, SIG_IGN);
       REFUSED("pwrite", ::pwrite(fd, "x", 1, 20), EFBIG);
       return ok();
     }},
    {"file-dup-shares", "dup shares the position, open does not",
     [] {
       int fd = scratch_file("abcdef"), same = ::dup(fd), other = ::open("file", O_RDONLY);
       char c;
       NEED("read", ::read(fd, &c, 1));
       WANT(position(same) == 1 && position(other) == 0, "other positions");
       return ok();
     }},
    {"file-statvfs", "statvfs tells a size and free room",
     [] {
       struct statvfs s{};
       NEED("statvfs", ::statvfs(".", &s));
       WANT(s.f_blocks > 0 && s.f_bavail > 0 && s.f_namemax == 255, "no size, no room, or other names");
       return ok();
     }},
    {"file-access", "faccessat2 with AT_EACCESS answers",
     [] {
       scratch_file();
       NEED("faccessat2", ::syscall(SYS_faccessat2, AT_FDCWD, "file", R_OK, AT_EACCESS));
       REFUSED("faccessat2", ::syscall(SYS_faccessat2, AT_FDCWD, "none", R_OK, AT_EACCESS), ENOENT);
       return ok();
     }},
    {"file-advise", "posix_fadvise and readahead are taken",
     [] {
       int fd = scratch_file("abc");
       WANT(::posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED) == 0, "posix_fadvise");
       NEED("readahead", ::readahead(fd, 0, 4096));
       return ok();
     }},
};

}  // namespace

Checks file_checks() { return kFileChecks; }

}  // namespace isola::behaviour
