#include "guest/agent/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>

#include "guest/agent/file_streams.h"
#include "guest/agent/path.h"
#include "guest/agent/tree.h"
#include "guest/agent/users.h"

namespace isola::guest {

namespace {

using Opened = Mux::Opened;

constexpr size_t kMaxXattr = 64 << 10;  // the kernel's own limit

std::unexpected<Error> failed(const char* what, const std::string& path) {
  return sys_error(std::string("cannot ") + what + " " + shown(path));
}

Result<Opened> do_stat(const StatArgs& a) {
  ISOLA_TRY(Stat s, stat_at(AT_FDCWD, a.path, a.follow));
  struct stat self;
  if (a.follow && ::lstat(a.path.c_str(), &self) == 0 && S_ISLNK(self.st_mode)) {
    // Where it led, said by the kernel: resolving it step by step could meet other links than the call above.
    Fd place(::open(a.path.c_str(), O_PATH | O_CLOEXEC));
    std::array<char, 4096> target;
    std::string name = "/proc/self/fd/" + std::to_string(place.get());
    ssize_t n = place ? ::readlink(name.c_str(), target.data(), target.size()) : -1;
    if (n > 0) s.target.assign(target.data(), static_cast<size_t>(n));
  }
  return done(encode(s));
}

Result<Opened> do_mkdir(const Mkdir& a) {
  if (a.parents) {
    ISOLA_CHECK(make_parents(a.path, a.mode));
    struct stat st;
    if (::mkdir(a.path.c_str(), a.mode & 07777) == 0) return done();
    int error = errno;
    if (error == EEXIST && ::stat(a.path.c_str(), &st) == 0 && S_ISDIR(st.st_mode)) return done();
    errno = error;
    return failed("create the folder", a.path);
  }
  if (::mkdir(a.path.c_str(), a.mode & 07777) < 0) return failed("create the folder", a.path);
  return done();
}

Result<Opened> do_rename(const Rename& a) {
  unsigned flags = a.replace ? 0 : 1;  // RENAME_NOREPLACE
  if (::syscall(SYS_renameat2, AT_FDCWD, a.from.c_str(), AT_FDCWD, a.to.c_str(), flags) < 0) {
    return failed("rename", a.from);
  }
  return done();
}

Result<Opened> do_chmod(const Chmod& a) {
  if (::chmod(a.path.c_str(), a.mode & 07777) < 0) return failed("change the mode of", a.path);
  return done();
}

Result<Opened> do_chown(const Chown& a) {
  ISOLA_TRY(User owner, resolve_user(a.owner));
  int flags = a.follow ? 0 : AT_SYMLINK_NOFOLLOW;
  if (::fchownat(AT_FDCWD, a.path.c_str(), owner.uid, owner.gid, flags) < 0)
    return failed("change the owner of", a.path);
  return done();
}

Result<Opened> do_symlink(const Symlink& a) {
  if (::symlink(a.target.c_str(), a.path.c_str()) < 0) return failed("create the link", a.path);
  return done();
}

Result<Opened> do_readlink(const PathArgs& a) {
  std::array<char, 4096> target;
  ssize_t n = ::readlink(a.path.c_str(), target.data(), target.size());
  if (n < 0) return failed("read the link", a.path);
  return done(std::string(target.data(), static_cast<size_t>(n)));
}

// For whoever only serves the files of one folder: symlinks in it, whoever made them, resolve inside it.
Result<Opened> do_enter(const PathArgs& a) {
  if (::chdir(a.path.c_str()) < 0 || ::chroot(".") < 0 || ::chdir("/") < 0) return failed("enter", a.path);
  return done();
}

Result<Opened> do_xattr_get(const Xattr& a) {
  std::string value(kMaxXattr, '\0');
  ssize_t n = ::lgetxattr(a.path.c_str(), a.name.c_str(), value.data(), value.size());
  if (n < 0) return failed("read the attribute of", a.path);
  value.resize(static_cast<size_t>(n));
  return bulk(std::move(value));
}

Result<Opened> do_xattr_set(const Xattr& a) {
  if (::lsetxattr(a.path.c_str(), a.name.c_str(), a.value.data(), a.value.size(), 0) < 0) {
    return failed("set the attribute of", a.path);
  }
  return done();
}

Result<Opened> do_xattr_remove(const Xattr& a) {
  if (::lremovexattr(a.path.c_str(), a.name.c_str()) < 0) return failed("remove the attribute of", a.path);
  return done();
}

Result<Opened> do_xattr_list(const PathArgs& a) {
  std::string list(kMaxXattr, '\0');
  ssize_t n = ::llistxattr(a.path.c_str(), list.data(), list.size());
  if (n < 0) return failed("list the attributes of", a.path);
  list.resize(static_cast<size_t>(n));
  Names out;
  for (size_t at = 0; at < list.size();) {
    std::string name = list.c_str() + at;
    at += name.size() + 1;
    out.names.push_back(std::move(name));
  }
  return bulk(encode(out));
}

Result<Opened> do_remove(const Remove& a) {
  if (::unlink(a.path.c_str()) == 0) return done();
  if (errno != EISDIR && errno != EPERM) return failed("remove", a.path);
  if (::rmdir(a.path.c_str()) == 0) return done();
  if (!a.recursive || (errno != ENOTEMPTY && errno != EEXIST)) return failed("remove", a.path);
  return open_remove_tree(a);
}

// Decodes, checks the paths, and acts as the user named in the arguments.
template <typename T>
Result<Opened> as_user(std::string_view args, Result<Opened> (*act)(const T&)) {
  ISOLA_TRY(T a, decode<T>(args));
  bool zero = false;
  if constexpr (requires { a.path; }) {
    if (a.path.empty() || a.path[0] != '/') return fail(Code::invalid, "a path must begin with /");
    zero |= a.path.find('\0') != std::string::npos;
  }
  if constexpr (requires { a.from; }) {
    if (a.from.empty() || a.from[0] != '/' || a.to.empty() || a.to[0] != '/') {
      return fail(Code::invalid, "a path must begin with /");
    }
    zero |= (a.from + a.to).find('\0') != std::string::npos;
  }
  if constexpr (requires { a.target; }) zero |= a.target.find('\0') != std::string::npos;
  if constexpr (requires { a.name; }) zero |= a.name.find('\0') != std::string::npos;
  if (zero) return fail(Code::invalid, "a path cannot hold a zero byte");
  ISOLA_TRY(User user, resolve_user(a.user));
  ISOLA_TRY(ActAs scope, ActAs::user(user));
  return act(a);
}

}  // namespace

Result<Opened> open_file(Op op, std::string_view args) {
  switch (op) {
    case Op::stat: return as_user(args, do_stat);
    case Op::list: return as_user(args, open_list);
    case Op::read: return as_user(args, open_read);
    case Op::write: return as_user(args, open_write);
    case Op::mkdir: return as_user(args, do_mkdir);
    case Op::rename: return as_user(args, do_rename);
    case Op::remove: return as_user(args, do_remove);
    case Op::chmod: return as_user(args, do_chmod);
    case Op::chown: return as_user(args, do_chown);
    case Op::symlink: return as_user(args, do_symlink);
    case Op::readlink: return as_user(args, do_readlink);
    case Op::enter: return as_user(args, do_enter);
    case Op::xattr_get: return as_user(args, do_xattr_get);
    case Op::xattr_set: return as_user(args, do_xattr_set);
    case Op::xattr_list: return as_user(args, do_xattr_list);
    case Op::xattr_remove: return as_user(args, do_xattr_remove);
    default: return fail(Code::unsupported, "this guest does not know that operation");
  }
}

}  // namespace isola::guest
