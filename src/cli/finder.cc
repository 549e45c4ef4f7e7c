#include "cli/finder.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>

#include "base/fd.h"

namespace isola::cli {

namespace fs = std::filesystem;

namespace {

Result<void> scan_file(Finder& finder, const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return sys_error("cannot open " + path);
  finder.begin(path);
  std::vector<char> buffer(1 << 20);
  for (;;) {
    ssize_t n = ::read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return sys_error("cannot read " + path);
    if (n == 0) break;
    finder.feed(std::string_view(buffer.data(), static_cast<size_t>(n)));
  }
  finder.end();
  return {};
}

}  // namespace

bool is_gits_own(const std::string& below) { return fs::path(below).filename() == ".git"; }

Result<void> scan_path(Finder& finder, const std::string& path, const LeavesOut& leaves_out) {
  std::error_code error;
  auto status = fs::status(path, error);
  if (error || !fs::exists(status)) return fail(Code::not_found, path + ": there is no such file");
  if (!fs::is_directory(status)) return scan_file(finder, path);
  fs::recursive_directory_iterator at(path, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (at->is_directory(error) && leaves_out(at->path().lexically_relative(path).string()))
      at.disable_recursion_pending();
    if (at->is_symlink(error) || !at->is_regular_file(error)) continue;
    ISOLA_CHECK(scan_file(finder, at->path()));
  }
  if (error) return fail(Code::denied, "cannot look through " + path + ": " + error.message());
  return {};
}

}  // namespace isola::cli
