#include "image/tree_compare.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <map>
#include <vector>

#include "base/fd.h"
#include "image/tree.h"

namespace isola::image {

namespace {

constexpr size_t kPiece = 256 << 10;

// What a descriptor that only names it (O_PATH) stands for: never a link's target, and no pipe or device is opened.
std::string name_of(const Fd& fd) { return "/proc/self/fd/" + std::to_string(fd.get()); }

Result<std::map<std::string, std::string>> attributes_of(const Fd& file) {
  std::map<std::string, std::string> all;
  const std::string path = name_of(file);
  if (::listxattr(path.c_str(), nullptr, 0) == 0) return all;
  std::string names(XATTR_LIST_MAX, '\0'), value(XATTR_SIZE_MAX, '\0');
  ssize_t size = ::listxattr(path.c_str(), names.data(), names.size());
  if (size < 0 && errno == ENOTSUP) return all;
  if (size < 0) return sys_error("cannot list attributes");
  names.resize(static_cast<size_t>(size));
  for (size_t at = 0; at < names.size(); at += std::strlen(&names[at]) + 1) {
    const std::string name = &names[at];
    if (name.starts_with("btrfs.")) continue;
    ssize_t n = ::getxattr(path.c_str(), name.c_str(), value.data(), value.size());
    if (n < 0) return sys_error("cannot read attributes");
    all[name] = value.substr(0, static_cast<size_t>(n));
  }
  return all;
}

Result<std::string> target_of(const Fd& link) {
  std::string target(PATH_MAX, '\0');
  ssize_t n = ::readlinkat(link.get(), "", target.data(), target.size());
  if (n < 0) return sys_error("cannot read a link");
  target.resize(static_cast<size_t>(n));
  return target;
}

Result<void> read_piece(int fd, off_t at, std::string& piece) {
  for (size_t have = 0; have < piece.size();) {
    ssize_t n = ::pread(fd, piece.data() + have, piece.size() - have, at + static_cast<off_t>(have));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return sys_error("cannot read a file", n < 0 ? errno : EIO);
    have += static_cast<size_t>(n);
  }
  return {};
}

// Holes that both have are passed over: a file may say that it is larger than any disk.
Result<bool> same_contents(const Fd& wanted, const Fd& found, off_t size) {
  if (size == 0) return true;
  Fd one(::open(name_of(wanted).c_str(), O_RDONLY | O_CLOEXEC));
  Fd other(::open(name_of(found).c_str(), O_RDONLY | O_CLOEXEC));
  if (!one || !other) return sys_error("cannot open a file");
  std::string here, there;
  for (off_t at = 0;;) {
    auto next = [&](const Fd& fd) {
      off_t data = ::lseek(fd.get(), at, SEEK_DATA);
      return data >= 0 ? data : errno == ENXIO ? size : at;
    };
    at = std::min(next(one), next(other));
    if (at >= size) return true;
    here.resize(std::min(kPiece, static_cast<size_t>(size - at)));
    there.resize(here.size());
    ISOLA_CHECK(read_piece(one.get(), at, here));
    ISOLA_CHECK(read_piece(other.get(), at, there));
    if (here != there) return false;
    at += static_cast<off_t>(here.size());
  }
}

class Comparison {
 public:
  Comparison(Fd wanted, Fd found) : wanted_(std::move(wanted)), found_(std::move(found)) {}

  Result<void> run() {
    ISOLA_CHECK(entry("."));
    while (!folders_.empty()) {
      std::string path = std::move(folders_.back());
      folders_.pop_back();
      auto same = folder(path);
      if (!same) return same;
    }
    return {};
  }

 private:
  static std::unexpected<Error> differs(const std::string& path, const std::string& what) {
    // A name may be as long as it likes; its end says most.
    size_t from = path.size() > 100 ? path.size() - 100 : 0;
    while (from < path.size() && (static_cast<unsigned char>(path[from]) & 0xc0) == 0x80) ++from;
    return fail(Code::corrupt, (from ? "…" : "") + path.substr(from) + ": " + what);
  }
  static Result<Fd> look_at(const Fd& root, const std::string& path) {
    Fd fd(::openat(root.get(), path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!fd) return differs(path, std::strerror(errno));
    return fd;
  }

  Result<void> folder(const std::string& path) {
    ISOLA_TRY(Fd here, look_at(wanted_, path));
    ISOLA_TRY(Fd there, look_at(found_, path));
    ISOLA_TRY(auto names, list_dir(name_of(here)));
    ISOLA_TRY(auto others, list_dir(name_of(there)));
    for (const auto& name : others)
      if (!std::ranges::binary_search(names, name)) return differs(path + "/" + name, "was not there");
    for (const auto& name : names) {
      struct stat st;
      if (::fstatat(here.get(), name.c_str(), &st, AT_SYMLINK_NOFOLLOW) < 0)
        return differs(path + "/" + name, std::strerror(errno));
      if (S_ISSOCK(st.st_mode)) continue;
      if (!std::ranges::binary_search(others, name)) return differs(path + "/" + name, "is missing");
      ISOLA_CHECK(entry(path + "/" + name));
    }
    return {};
  }

  Result<void> entry(const std::string& path) {
    ISOLA_TRY(Fd here, look_at(wanted_, path));
    ISOLA_TRY(Fd there, look_at(found_, path));
    struct stat one, other;
    if (::fstat(here.get(), &one) < 0 || ::fstat(there.get(), &other) < 0) return differs(path, std::strerror(errno));
    if (one.st_mode != other.st_mode || one.st_rdev != other.st_rdev)
      return differs(path, "is of another kind or mode");
    if (one.st_uid != other.st_uid || one.st_gid != other.st_gid) return differs(path, "has another owner");
    if (one.st_mtim.tv_sec != other.st_mtim.tv_sec || one.st_mtim.tv_nsec != other.st_mtim.tv_nsec)
      return differs(path, "has another time of change");
    ISOLA_TRY(auto attributes, attributes_of(here));
    ISOLA_TRY(auto others, attributes_of(there));
    if (attributes != others) return differs(path, "has other attributes");
    if (S_ISDIR(one.st_mode)) {
      folders_.push_back(path);
      return {};
    }
    // How many names there are is no use: the overlay has names of its own, outside of the tree.
    if (one.st_nlink > 1) {
      auto [known, first] = linked_.emplace(one.st_ino, other.st_ino);
      if (known->second != other.st_ino) return differs(path, "is not the same file as under its other names");
      if (!first) return {};
    }
    if (S_ISLNK(one.st_mode)) {
      ISOLA_TRY(auto target, target_of(here));
      ISOLA_TRY(auto another, target_of(there));
      if (target != another) return differs(path, "leads elsewhere");
    }
    if (!S_ISREG(one.st_mode)) return {};
    if (one.st_size != other.st_size) return differs(path, "has another size");
    ISOLA_TRY(bool same, same_contents(here, there, one.st_size));
    if (!same) return differs(path, "has other contents");
    return {};
  }

  Fd wanted_, found_;
  std::vector<std::string> folders_;  // still to be gone through
  std::map<ino_t, ino_t> linked_;     // files with several names: which is which
};

}  // namespace

Result<void> compare_trees(const std::string& wanted, const std::string& found) {
  Fd one(::open(wanted.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!one) return sys_error("cannot open " + wanted);
  Fd other(::open(found.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!other) return sys_error("cannot open " + found);
  return Comparison(std::move(one), std::move(other)).run();
}

}  // namespace isola::image
