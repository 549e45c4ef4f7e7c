#include "guest/agent/private_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <utility>

#include "base/file.h"

namespace isola::guest {

namespace {

constexpr char kPlace[] = "/dev/shm";

bool is_name(std::string_view name) {
  if (name.empty() || name.size() > 128 || (name[0] >= '0' && name[0] <= '9')) return false;
  for (char c : name)
    if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  return true;
}

Result<std::string> random_name() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return sys_error("no random numbers");
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = ".isola-";
  for (unsigned char byte : bytes) name += {kDigits[byte >> 4], kDigits[byte & 15]};
  return name;
}

// Only where it is memory: on a disk it would be in the next image of the files, and in whatever the disk keeps.
Result<Fd> open_place() {
  Fd place(::open(kPlace, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct statfs about{};
  if (!place || ::fstatfs(place.get(), &about) < 0) return sys_error(std::string("cannot open ") + kPlace);
  if (about.f_type != TMPFS_MAGIC)
    return fail(Code::unsupported, std::string(kPlace) + " is not memory here: no file can be given to a command");
  return place;
}

}  // namespace

PrivateFiles& PrivateFiles::operator=(PrivateFiles&& other) noexcept {
  remove();
  folder_ = std::move(other.folder_);
  name_ = std::move(other.name_);
  names_ = std::exchange(other.names_, {});
  variables_ = std::exchange(other.variables_, {});
  return *this;
}

Result<PrivateFiles> PrivateFiles::make(const std::vector<std::string>& files, const User& user) {
  PrivateFiles made;
  ISOLA_TRY(Fd place, open_place());
  ISOLA_TRY(std::string name, random_name());
  if (::mkdirat(place.get(), name.c_str(), 0700) < 0) return sys_error("cannot make a folder for a command's files");
  made.name_ = name;
  made.folder_ = Fd(::openat(place.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!made.folder_) {
    auto error = sys_error("cannot open the folder of a command's files");
    ::unlinkat(place.get(), name.c_str(), AT_REMOVEDIR);
    return error;
  }
  for (const auto& one : files) {
    std::string variable = one.substr(0, one.find('='));
    if (!is_name(variable) || variable.size() == one.size())
      return fail(Code::invalid, "a file's name has letters, digits and '_', and begins with none of the digits");
    Fd file(::openat(made.folder_.get(), variable.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400));
    if (!file) return sys_error("cannot make a command's file");
    made.names_.push_back(variable);
    ISOLA_CHECK(write_all(file.get(), std::string_view(one).substr(variable.size() + 1)));
    if (::fchown(file.get(), user.uid, user.gid) < 0) return sys_error("cannot give a file to its command's user");
    made.variables_.push_back(variable + "=" + kPlace + "/" + name + "/" + variable);
  }
  if (::fchown(made.folder_.get(), user.uid, user.gid) < 0 || ::fchmod(made.folder_.get(), 0500) < 0)
    return sys_error("cannot give a folder to its command's user");
  return made;
}

void PrivateFiles::remove() {
  if (!folder_) return;
  for (const auto& name : names_) ::unlinkat(folder_.get(), name.c_str(), 0);
  folder_.reset();
  if (Fd place(::open(kPlace, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)); place)
    ::unlinkat(place.get(), name_.c_str(), AT_REMOVEDIR);
  names_.clear();
  variables_.clear();
}

}  // namespace isola::guest
