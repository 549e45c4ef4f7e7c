#include "launcher/name_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/file.h"

namespace isola::launcher {

namespace {

// ".<pid>.<number>": put aside by a process that is no more, or by one before us that had our number.
bool is_left_behind(std::string_view name) {
  if (!NameFiles::is_aside(name)) return false;
  pid_t pid = 0;
  auto [end, bad] = std::from_chars(name.data() + 1, name.data() + name.size(), pid);
  if (bad != std::errc() || pid <= 0 || end == name.data() + name.size() || *end != '.') return false;
  return pid == ::getpid() || (::kill(pid, 0) < 0 && errno == ESRCH);
}

}  // namespace

Result<NameFiles> NameFiles::open(const std::string& folder, int mode) {
  ISOLA_CHECK(make_dirs(folder, mode));
  NameFiles files;
  files.folder_ = folder;
  files.owner_ = ::getpid();
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
  if (!dir) return sys_error("cannot read " + folder);
  while (dirent* entry = ::readdir(dir.get()))
    if (is_left_behind(entry->d_name)) ::unlink(files.path(entry->d_name).c_str());
  return files;
}

NameFiles::~NameFiles() {
  if (owner_ != ::getpid()) return;
  for (int i = 0; i < aside_; ++i) ::unlink(aside(i).c_str());
}

// The last of those that were put aside, with this text.
Result<std::string> NameFiles::write_aside(std::string_view text) {
  std::string whole = aside(aside_ > 0 ? aside_ - 1 : 0);
  Fd file(::open(whole.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return sys_error("cannot make a file in " + folder_);
  if (aside_ == 0) aside_ = 1;
  ssize_t n = ::pwrite(file.get(), text.data(), text.size(), 0);
  if (n != static_cast<ssize_t>(text.size()))
    return sys_error("cannot write a file in " + folder_, n < 0 ? errno : ENOSPC);
  struct stat st{};
  if (::fstat(file.get(), &st) < 0) return sys_error("cannot look at a file in " + folder_);
  if (std::cmp_not_equal(st.st_size, text.size()) && ::ftruncate(file.get(), static_cast<off_t>(text.size())) < 0)
    return sys_error("cannot cut a file in " + folder_);
  return whole;
}

Result<void> NameFiles::replace(const std::string& name, std::string_view text) {
  ISOLA_TRY(std::string whole, write_aside(text));
  if (::rename(whole.c_str(), path(name).c_str()) < 0) return sys_error("cannot name a file in " + folder_);
  --aside_;
  return {};
}

Result<void> NameFiles::add(const std::string& name, std::string_view text) {
  ISOLA_TRY(std::string whole, write_aside(text));
  // One step that excludes others; the file is whole by then.
  if (::renameat2(AT_FDCWD, whole.c_str(), AT_FDCWD, path(name).c_str(), RENAME_NOREPLACE) < 0) {
    if (errno == EEXIST) return fail(Code::exists, path(name) + " exists");
    return sys_error("cannot name a file in " + folder_);
  }
  --aside_;
  return {};
}

void NameFiles::remove(const std::string& name) {
  if (aside_ < kMostAside && ::rename(path(name).c_str(), aside(aside_).c_str()) == 0)
    ++aside_;
  else
    ::unlink(path(name).c_str());
}

}  // namespace isola::launcher
