#include "dialect/e2b/accounts.h"

#include <charconv>
#include <vector>

namespace isola::e2b {

namespace {

constexpr size_t kMost = 1 << 20;

std::string_view cut(std::string_view& text, char at) {
  auto n = text.find(at);
  auto part = text.substr(0, n);
  text.remove_prefix(n == text.npos ? text.size() : n + 1);
  return part;
}

bool read_number(std::string_view text, uint32_t& out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

Task<std::string> file(sandbox::GuestLink& link, const char* path) {
  guest::Read args{.path = path, .length = kMost};
  auto channel = link.open(guest::Op::read, guest::encode(args));
  std::string text;
  // A sandbox without the file has no names, and that is its own affair.
  if (auto opened = co_await channel->reply(); !opened) co_return text;
  while (text.size() <= kMost) {
    auto piece = co_await channel->read();
    if (!piece) break;
    text += *piece;
  }
  co_return text;
}

}  // namespace

Task<Result<Accounts>> Accounts::read(sandbox::GuestLink& link) {
  std::string passwd = co_await file(link, "/etc/passwd");
  std::string group = co_await file(link, "/etc/group");
  co_return parse(passwd, group);
}

Accounts Accounts::parse(std::string_view passwd, std::string_view group) {
  Accounts out;
  while (!passwd.empty()) {
    auto line = cut(passwd, '\n');
    auto name = cut(line, ':');
    cut(line, ':');
    uint32_t uid = 0;
    if (name.empty() || !read_number(cut(line, ':'), uid)) continue;
    cut(line, ':');
    cut(line, ':');
    auto home = cut(line, ':');
    out.homes_.emplace(name, home.starts_with('/') ? home : "/");
    out.users_.emplace(uid, name);
  }
  while (!group.empty()) {
    auto line = cut(group, '\n');
    auto name = cut(line, ':');
    cut(line, ':');
    uint32_t gid = 0;
    if (!name.empty() && read_number(cut(line, ':'), gid)) out.groups_.emplace(gid, name);
  }
  return out;
}

std::optional<std::string> Accounts::home(const std::string& user) const {
  auto at = homes_.find(user);
  if (at == homes_.end()) return std::nullopt;
  return at->second;
}

std::string Accounts::user(uint32_t uid) const {
  auto at = users_.find(uid);
  return at == users_.end() ? std::to_string(uid) : at->second;
}

std::string Accounts::group(uint32_t gid) const {
  auto at = groups_.find(gid);
  return at == groups_.end() ? std::to_string(gid) : at->second;
}

std::string cleaned(std::string_view path) {
  bool rooted = path.starts_with('/');
  std::vector<std::string_view> parts;
  while (!path.empty()) {
    auto part = cut(path, '/');
    if (part.empty() || part == ".") continue;
    if (part != "..") {
      parts.push_back(part);
    } else if (!parts.empty() && parts.back() != "..") {
      parts.pop_back();
    } else if (!rooted) {
      parts.push_back(part);
    }
  }
  std::string out = rooted ? "/" : "";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i) out += '/';
    out += parts[i];
  }
  return out.empty() ? "." : out;
}

Result<std::string> expand(std::string_view path, std::string_view home) {
  if (path.find('\0') != path.npos) return fail(Code::invalid, "the path holds a NUL byte");
  if (path.starts_with('~')) {
    path.remove_prefix(1);
    if (!path.empty() && path[0] != '/')
      return fail(Code::invalid, "cannot expand the home of another user: ~" + std::string(path));
  } else if (path.starts_with('/')) {
    return std::string(path);
  }
  return cleaned(std::string(home) + "/" + std::string(path));
}

std::string base_name(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  auto slash = path.rfind('/');
  if (slash == path.npos || path.size() == 1) return std::string(path);
  return std::string(path.substr(slash + 1));
}

std::string folder_of(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  auto slash = path.rfind('/');
  if (slash == path.npos) return ".";
  return std::string(slash == 0 ? "/" : path.substr(0, slash));
}

}  // namespace isola::e2b
