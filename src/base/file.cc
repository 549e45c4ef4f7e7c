#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/light_file.h"

namespace isola {

namespace {

Result<void> write_existing(int dir, const std::string& path, std::string_view text) {
  Fd fd(::openat(dir, path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + path);
  ssize_t n;
  do n = ::write(fd.get(), text.data(), text.size());
  while (n < 0 && errno == EINTR);
  if (n < 0) return sys_error("cannot write " + path);
  if (static_cast<size_t>(n) != text.size()) return fail(Code::internal, "short write to " + path);
  return {};
}

}  // namespace

Result<std::string> read_file_at(int dir, const std::string& path, size_t max) {
  Fd fd(::openat(dir, path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return sys_error("cannot open " + path);
  std::string out;
  char buf[8192];
  for (;;) {
    ssize_t n = ::read(fd.get(), buf, sizeof buf);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read " + path);
    if (n == 0) return out;
    out.append(buf, static_cast<size_t>(n));
    if (out.size() > max) return fail(Code::exhausted, path + " is larger than expected");
  }
}

Result<std::string> read_file(const std::string& path, size_t max) { return read_file_at(AT_FDCWD, path, max); }

Result<void> write_file(const std::string& path, std::string_view text) { return write_existing(AT_FDCWD, path, text); }

Result<void> write_file_at(int dir, const std::string& path, std::string_view text) {
  return write_existing(dir, path, text);
}

Result<void> write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot write");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return {};
}

namespace {

// Into path.tmp, and that over path.
Result<void> put_in_place(const std::string& path, std::string_view text, int mode, bool sync) {
  std::string tmp = path + ".tmp";
  {
    Fd fd(::open(tmp.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    if (!fd) return sys_error("cannot create " + tmp);
    auto written = write_all(fd.get(), text);
    if (written && sync && ::fsync(fd.get()) < 0) written = sys_error("cannot sync " + tmp);
    if (!written) {
      ::unlink(tmp.c_str());
      return std::unexpected(written.error().in(path));
    }
  }
  if (::rename(tmp.c_str(), path.c_str()) < 0) {
    auto error = sys_error("cannot rename " + tmp);
    ::unlink(tmp.c_str());
    return error;
  }
  return {};
}

}  // namespace

Result<void> replace_file(const std::string& path, std::string_view text, int mode) {
  ISOLA_CHECK(put_in_place(path, text, mode, true));
  auto slash = path.rfind('/');
  Fd dir(
      ::open(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!dir || ::fsync(dir.get()) < 0) return sys_error("cannot sync the folder of " + path);
  return {};
}

Result<void> replace_file_lightly(const std::string& path, std::string_view text, int mode) {
  return put_in_place(path, text, mode, false);
}

Result<void> make_dirs(const std::string& path, int mode) {
  for (size_t at = 1; at != std::string::npos;) {
    at = path.find('/', at);
    std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), mode) < 0 && errno != EEXIST) return sys_error("cannot create " + part);
    if (at != std::string::npos) ++at;
  }
  return {};
}

bool is_there(const std::string& path) {
  struct stat status{};
  return ::lstat(path.c_str(), &status) == 0;
}

Result<void> sync_folder(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || ::fsync(fd.get()) < 0) return sys_error("cannot put " + path + " on disk");
  return {};
}

}  // namespace isola
