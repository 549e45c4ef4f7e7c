#include "guest/agent/users.h"

#include <fcntl.h>
#include <sys/fsuid.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/fd.h"

namespace isola::guest {

namespace {

constexpr size_t kMaxDatabase = 4 << 20;

bool acting = false;  // an ActAs is alive: one inside it (of the same user) must not make us root when it goes

// The file may be anything that the sandbox made of it: a FIFO must not stop pid 1.
std::string read_database(const char* path) {
  Fd fd(::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) < 0 || !S_ISREG(st.st_mode)) return {};
  std::string out(std::min<size_t>(static_cast<size_t>(st.st_size), kMaxDatabase), '\0');
  ssize_t n = ::read(fd.get(), out.data(), out.size());
  out.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return out;
}

bool number(std::string_view text, uint32_t& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty() && out != UINT32_MAX;
}

std::string_view cut(std::string_view& text, char at) {
  auto n = text.find(at);
  auto part = text.substr(0, n);
  text.remove_prefix(n == text.npos ? text.size() : n + 1);
  return part;
}

struct Passwd {
  std::string_view name, home, shell;
  uint32_t uid = 0, gid = 0;
};

template <typename F>
bool find_passwd(std::string_view passwd, F wanted, Passwd& out) {
  while (!passwd.empty()) {
    auto line = cut(passwd, '\n');
    Passwd p;
    p.name = cut(line, ':');
    cut(line, ':');
    auto uid = cut(line, ':'), gid = cut(line, ':');
    cut(line, ':');
    p.home = cut(line, ':');
    p.shell = line;
    if (p.name.empty() || !number(uid, p.uid) || !number(gid, p.gid) || !wanted(p)) continue;
    out = p;
    return true;
  }
  return false;
}

void add_groups(std::string_view group, User& user) {
  while (!group.empty()) {
    auto line = cut(group, '\n');
    cut(line, ':');
    cut(line, ':');
    uint32_t gid;
    if (!number(cut(line, ':'), gid) || gid == user.gid) continue;
    while (!line.empty()) {
      if (cut(line, ',') != user.name) continue;
      if (user.groups.size() < 1024) user.groups.push_back(gid);
      break;
    }
  }
}

}  // namespace

Result<User> resolve_user(std::string_view text, std::string_view passwd, std::string_view group) {
  User user;
  Passwd p;
  std::string_view rest = text, first = cut(rest, ':');
  bool has_gid = text.find(':') != text.npos;
  uint32_t uid = 0, gid = 0;
  if (number(first, uid)) {
    if (find_passwd(passwd, [&](const Passwd& e) { return e.uid == uid; }, p)) {
      user = {p.uid, p.gid, {}, std::string(p.name), std::string(p.home), std::string(p.shell)};
    } else {
      user = {uid, uid, {}, std::string(first), uid == 0 ? "/root" : "/"};
    }
  } else if (find_passwd(passwd, [&](const Passwd& e) { return e.name == first; }, p)) {
    user = {p.uid, p.gid, {}, std::string(p.name), std::string(p.home), std::string(p.shell)};
  } else if (first != "root") {
    return fail(Code::not_found, "no such user: " + std::string(text.substr(0, 64)));
  }
  if (has_gid) {
    if (!number(rest, gid)) return fail(Code::invalid, "not a group id: " + std::string(rest.substr(0, 64)));
    user.gid = gid;
  }
  user.groups = {user.gid};
  if (!has_gid) add_groups(group, user);
  if (user.home.empty() || user.home[0] != '/') user.home = "/";
  return user;
}

Result<User> resolve_user(std::string_view text) {
  if (text.empty() || text == "root") return User{.groups = {0}};  // the path of almost every call: no file is read
  return resolve_user(text, read_database("/etc/passwd"), read_database("/etc/group"));
}

Result<ActAs> ActAs::user(const User& user) {
  if (acting || (user.uid == 0 && user.gid == 0)) return ActAs(false);
  acting = true;
  ActAs scope(true);
  // Raw calls: glibc's wrappers exist to keep threads in step, and the guest has one.
  if (::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) < 0) return sys_error("cannot take the groups");
  ::setfsgid(user.gid);
  ::setfsuid(user.uid);
  if (::setfsuid(static_cast<uid_t>(-1)) != static_cast<int>(user.uid))
    return fail(Code::denied, "cannot act as that user");
  return scope;
}

ActAs::~ActAs() {
  if (!active_) return;
  acting = false;
  ::setfsuid(0);
  ::setfsgid(0);
  const gid_t root = 0;
  ::syscall(SYS_setgroups, 1, &root);
}

}  // namespace isola::guest
