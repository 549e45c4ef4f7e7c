#include "guest/agent/tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "guest/agent/open_folder.h"
#include "guest/agent/path.h"
#include "guest/agent/users.h"

namespace isola::guest {

namespace {

constexpr int kSlice = 256;

OpenFolder as_dir(Fd fd) {
  if (!fd) return nullptr;
  DIR* dir = ::fdopendir(fd.get());
  if (dir) (void)fd.release();
  return OpenFolder(dir);
}

OpenFolder open_dir(int parent, const char* name) { return as_dir(open_folder(parent, name)); }

// The next name that is not . or ..; null at the end (errno 0) or on an error.
const char* next_name(DIR* dir) {
  for (;;) {
    errno = 0;
    dirent* e = ::readdir(dir);
    if (!e) return nullptr;
    if (std::strcmp(e->d_name, ".") != 0 && std::strcmp(e->d_name, "..") != 0) return e->d_name;
  }
}

class ListChannel : public Channel {
 public:
  ListChannel(const List& args, User user, OpenFolder root)
      : user_(std::move(user)), depth_(args.depth), limit_(args.limit) {
    stack_.push_back({std::move(root), ""});
  }

  Step step() override {
    auto scope = ActAs::user(user_);
    if (!scope) return finish(std::unexpected(scope.error())), Step::idle;
    Writer batch;
    for (int i = 0; i < kSlice && !stack_.empty(); ++i) {
      // One record is below 9 KiB: two paths of at most 4 KiB each and the numbers.
      if (batch.data().size() + kMaxRecord > room()) break;
      if (!one(batch)) break;
    }
    bool sent = !batch.data().empty();
    if (sent) send(batch.data());
    if (stack_.empty()) return finish(encode(Listed{count_, truncated_})), Step::idle;
    return sent || room() >= kMaxRecord ? Step::again : Step::idle;
  }

 private:
  static constexpr size_t kMaxRecord = 10 << 10;
  struct Level {
    OpenFolder dir;
    std::string prefix;
  };

  bool one(Writer& batch) {
    Level& level = stack_.back();
    const char* name = next_name(level.dir.get());
    if (!name) return stack_.pop_back(), true;
    if (count_ == limit_) {
      truncated_ = true;
      stack_.clear();
      return false;
    }
    auto stat = stat_at(::dirfd(level.dir.get()), name, false);
    if (!stat) return true;  // gone in the meantime
    std::string path = level.prefix + name;
    if (path.size() > 4096) return true;
    ++count_;
    batch.str(encode(Entry{path, *stat}));
    if (stat->type == FileType::dir && stack_.size() < depth_) {
      // A folder that may not be read is listed, its inside is not.
      if (OpenFolder inner = open_dir(::dirfd(level.dir.get()), name)) stack_.push_back({std::move(inner), path + "/"});
    }
    return true;
  }

  User user_;
  uint32_t depth_;
  uint64_t limit_, count_ = 0;
  bool truncated_ = false;
  std::vector<Level> stack_;
};

// Holds one open folder whatever the depth. Up goes by "..", and the folder found there must be the one we came from:
// somebody may have moved the tree while we were in it.
class RemoveChannel : public Channel {
 public:
  RemoveChannel(const Remove& args, User user, Fd parent, OpenFolder dir)
      : user_(std::move(user)), path_(args.path), parent_(std::move(parent)), dir_(std::move(dir)) {
    names_.push_back(split(args.path).name);
  }

  Step step() override {
    auto scope = ActAs::user(user_);
    if (!scope) return finish(std::unexpected(scope.error())), Step::idle;
    for (int i = 0; i < kSlice; ++i) {
      auto more = one();
      if (!more) return finish(std::unexpected(more.error())), Step::idle;
      if (!*more) return finish(std::string()), Step::idle;
    }
    return Step::again;
  }

 private:
  struct Id {
    dev_t dev;
    ino_t ino;
  };

  Result<bool> one() {
    int fd = ::dirfd(dir_.get());
    if (const char* name = next_name(dir_.get())) {
      if (::unlinkat(fd, name, 0) == 0 || errno == ENOENT) return true;
      if (errno != EISDIR && errno != EPERM) return sys_error("cannot remove " + shown(path_) + "/…/" + name);
      if (::unlinkat(fd, name, AT_REMOVEDIR) == 0) return true;
      if (errno != ENOTEMPTY && errno != EEXIST) return sys_error("cannot remove " + shown(path_) + "/…/" + name);
      return down(fd, name);
    }
    if (errno != 0) return sys_error("cannot read a folder below " + shown(path_));
    return up(fd);
  }

  Result<bool> down(int fd, const std::string& name) {
    struct stat st;
    if (::fstat(fd, &st) < 0) return sys_error("cannot look at a folder");
    if (names_.size() > 100000) return fail(Code::exhausted, "the tree is too deep");
    OpenFolder inner = open_dir(fd, name.c_str());
    if (!inner) return sys_error("cannot open " + shown(path_) + "/…/" + name);
    above_.push_back({st.st_dev, st.st_ino});
    names_.push_back(name);
    dir_ = std::move(inner);
    return true;
  }

  Result<bool> up(int fd) {
    std::string name = std::move(names_.back());
    names_.pop_back();
    if (above_.empty()) {
      if (::unlinkat(parent_.get(), name.c_str(), AT_REMOVEDIR) < 0) return sys_error("cannot remove " + shown(path_));
      return false;
    }
    OpenFolder outer = open_dir(fd, "..");
    struct stat st;
    if (!outer || ::fstat(::dirfd(outer.get()), &st) < 0) return sys_error("cannot go back up below " + shown(path_));
    if (st.st_dev != above_.back().dev || st.st_ino != above_.back().ino) {
      return fail(Code::unavailable, shown(path_) + " was moved while it was being removed");
    }
    above_.pop_back();
    dir_ = std::move(outer);
    if (::unlinkat(::dirfd(dir_.get()), name.c_str(), AT_REMOVEDIR) < 0 && errno != ENOENT) {
      // Filled again meanwhile: the reading of this folder begins anew and meets it again, unless that never ends.
      if ((errno == ENOTEMPTY || errno == EEXIST) && ++refilled_ < 100) return true;
      return sys_error("cannot remove " + shown(path_) + "/…/" + name);
    }
    return true;
  }

  User user_;
  std::string path_;
  Fd parent_;
  OpenFolder dir_;
  std::vector<Id> above_;
  std::vector<std::string> names_;
  int refilled_ = 0;
};

}  // namespace

Result<Mux::Opened> open_list(const List& a) {
  if (a.depth == 0 || a.depth > kMaxListDepth) return fail(Code::invalid, "a listing goes 1 to 64 folders deep");
  ISOLA_TRY(User user, resolve_user(a.user));
  // The one place where a link is followed: whoever asks may name a folder by a link to it.
  OpenFolder dir = as_dir(Fd(::open(a.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK)));
  if (!dir) return sys_error("cannot list " + shown(a.path));
  return Mux::Opened{std::make_unique<ListChannel>(a, std::move(user), std::move(dir)), {}};
}

Result<Mux::Opened> open_remove_tree(const Remove& a) {
  ISOLA_TRY(User user, resolve_user(a.user));
  auto [above, name] = split(a.path);
  if (name.empty() || name == "." || name == "..") return fail(Code::invalid, "that folder cannot be removed");
  Fd parent(::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!parent) return sys_error("cannot open " + shown(above));
  OpenFolder dir = open_dir(parent.get(), name.c_str());
  if (!dir) return sys_error("cannot open " + shown(a.path));
  return Mux::Opened{std::make_unique<RemoveChannel>(a, std::move(user), std::move(parent), std::move(dir)), {}};
}

}  // namespace isola::guest
