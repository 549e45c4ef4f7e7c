#include "guest/agent/watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <memory>
#include <unordered_map>

#include "guest/agent/open_folder.h"
#include "guest/agent/path.h"
#include "guest/agent/users.h"

namespace isola::guest {

namespace {

constexpr size_t kMaxWatches = 8192;
constexpr int kScanSlice = 256;
constexpr size_t kMaxBacklog = 64 << 10;  // of events that the host has no room for; beyond it the kernel's queue fills
constexpr uint32_t kMask = IN_CREATE | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ATTRIB |
                           IN_DELETE_SELF | IN_ONLYDIR | IN_EXCL_UNLINK;

class WatchChannel : public Channel {
 public:
  WatchChannel(Loop& loop, const Watch& args, User user, Fd inotify)
      : loop_(loop),
        root_(args.path),
        recursive_(args.recursive),
        user_(std::move(user)),
        inotify_(std::move(inotify)) {}
  ~WatchChannel() override { arm(false); }

  Result<void> begin(bool local_only) {
    if (local_only) ISOLA_CHECK(must_be_local());
    int wd = ::inotify_add_watch(inotify_.get(), root_.c_str(), kMask);
    if (wd < 0) return sys_error("cannot watch " + shown(root_));
    paths_[wd] = "";
    root_wd_ = wd;
    if (recursive_) scan_.push_back({"", false});
    return {};
  }

  Step step() override {
    auto scope = ActAs::user(user_);
    if (!scope) return finish(std::unexpected(scope.error())), Step::idle;
    flush();
    if (backlog_.size() >= kMaxBacklog) return Step::idle;  // the host's credit wakes us
    for (int i = 0; i < kScanSlice && scanning(); ++i) scan_one();
    if (scanning()) return flush(), Step::again;
    if (!replied_) {
      replied_ = true;
      reply(encode(Done{.bytes = paths_.size()}));
    }
    bool more = read_events();
    flush();
    if (gone_) return finish(fail(Code::not_found, "the watched folder was removed", ENOENT)), Step::idle;
    if (more || scanning()) return Step::again;
    if (backlog_.empty()) arm(true);
    return Step::idle;
  }

 private:
  struct Scan {
    std::string path;
    bool announce;  // it is new: what is in it is told as created
  };

  Result<void> must_be_local() const {
    struct statfs there{};
    if (::statfs(root_.c_str(), &there) < 0) return sys_error("cannot watch " + shown(root_));
    switch (static_cast<uint32_t>(there.f_type)) {
      case 0x65735546:  // FUSE
      case 0x6969:      // NFS
      case 0x517b:      // SMB
      case 0xff534d42:  // CIFS
      case 0xfe534d42:  // SMB2
        return fail(Code::invalid, "cannot watch path on network filesystem: " + shown(root_));
      default: return {};
    }
  }

  bool scanning() const { return dir_ || !scan_.empty(); }
  std::string full(const std::string& path) const { return path.empty() ? root_ : root_ + "/" + path; }

  void scan_one() {
    if (!dir_) {
      current_ = std::move(scan_.front());
      scan_.pop_front();
      if (!current_.path.empty() && !add(current_.path)) return;
      int fd = ::open(full(current_.path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK);
      if (fd < 0) return;
      dir_.reset(::fdopendir(fd));
      if (!dir_) ::close(fd);
      return;
    }
    dirent* e = ::readdir(dir_.get());
    if (!e) return dir_.reset();
    if (std::strcmp(e->d_name, ".") == 0 || std::strcmp(e->d_name, "..") == 0) return;
    bool is_dir = e->d_type == DT_DIR;
    if (e->d_type == DT_UNKNOWN) {
      auto st = stat_at(::dirfd(dir_.get()), e->d_name, false);
      is_dir = st && st->type == FileType::dir;
    }
    auto path = below(current_.path, e->d_name);
    if (current_.announce) put({Change::created, is_dir, 0, path});
    if (is_dir && recursive_) scan_.push_back({path, current_.announce});
  }

  bool add(const std::string& path) {
    if (path.size() > 4000) return false;
    int wd = paths_.size() < kMaxWatches
                 ? ::inotify_add_watch(inotify_.get(), full(path).c_str(), kMask | IN_DONT_FOLLOW)
                 : -ENOSPC;
    if (wd >= 0) return paths_[wd] = path, true;
    if (wd == -ENOSPC || errno == ENOSPC) put({Change::limit, true, 0, path});
    return false;
  }

  static std::string below(const std::string& dir, const char* name) { return dir.empty() ? name : dir + "/" + name; }

  // True when there may be more.
  bool read_events() {
    alignas(inotify_event) char buffer[16 << 10];
    ssize_t n = ::read(inotify_.get(), buffer, sizeof buffer);
    if (n <= 0) return false;
    for (ssize_t at = 0; at < n;) {
      auto* e = reinterpret_cast<const inotify_event*>(buffer + at);
      at += static_cast<ssize_t>(sizeof *e + e->len);
      handle(*e);
    }
    return true;
  }

  void handle(const inotify_event& e) {
    if (e.mask & IN_Q_OVERFLOW) return put({Change::overflow, false, 0, ""});
    auto at = paths_.find(e.wd);
    if (at == paths_.end()) return;
    if (e.mask & IN_IGNORED) {
      gone_ |= e.wd == root_wd_;
      paths_.erase(at);
      return;
    }
    if (e.len == 0) return;  // about the folder itself: its parent tells
    bool is_dir = e.mask & IN_ISDIR;
    auto path = below(at->second, e.name);
    Change change = e.mask & IN_CREATE       ? Change::created
                    : e.mask & IN_MODIFY     ? Change::modified
                    : e.mask & IN_DELETE     ? Change::removed
                    : e.mask & IN_MOVED_FROM ? Change::moved_from
                    : e.mask & IN_MOVED_TO   ? Change::moved_to
                    : e.mask & IN_ATTRIB     ? Change::attributes
                                             : Change::none;
    if (change == Change::none) return;
    put({change, is_dir, e.cookie, path});
    if (!is_dir || !recursive_) return;
    if (change == Change::moved_from) forget(path);
    if (change == Change::created || change == Change::moved_to) scan_.push_back({path, true});
  }

  // A folder that left: its watches would go on telling under a name that is no longer true.
  void forget(const std::string& path) {
    for (auto at = paths_.begin(); at != paths_.end();) {
      bool inside = at->second == path || at->second.starts_with(path + "/");
      if (inside) ::inotify_rm_watch(inotify_.get(), at->first);
      at = inside ? paths_.erase(at) : std::next(at);
    }
  }

  void put(WatchEvent event) {
    std::string record = encode(std::move(event));
    Writer framed;
    framed.str(record);
    backlog_ += framed.data();
  }

  // Whole records only.
  void flush() {
    while (!backlog_.empty()) {
      size_t space = room(), end = 0;
      while (end < backlog_.size()) {
        uint32_t length;
        std::memcpy(&length, backlog_.data() + end, sizeof length);
        if (end + sizeof length + length > space) break;
        end += sizeof length + length;
      }
      if (end == 0) return;
      send(std::string_view(backlog_).substr(0, end));
      backlog_.erase(0, end);
    }
  }

  void on_inotify(uint32_t) {
    arm(false);
    schedule();
  }

  void arm(bool on) {
    if (on == armed_) return;
    armed_ = on && loop_.add(inotify_.get(), EPOLLIN, &source_);
    if (!on) loop_.remove(inotify_.get(), &source_);
  }

  Loop& loop_;
  std::string root_;
  bool recursive_;
  User user_;
  Fd inotify_;
  MemberSource<WatchChannel, &WatchChannel::on_inotify> source_{this};
  std::unordered_map<int, std::string> paths_;
  std::deque<Scan> scan_;
  Scan current_;
  OpenFolder dir_;
  std::string backlog_;
  int root_wd_ = -1;
  bool armed_ = false, replied_ = false, gone_ = false;
};

}  // namespace

Result<Mux::Opened> open_watch(Loop& loop, const Watch& a, bool local_only) {
  if (a.path.empty() || a.path[0] != '/' || a.path.find('\0') != std::string::npos) {
    return fail(Code::invalid, "a path must begin with /");
  }
  ISOLA_TRY(User user, resolve_user(a.user));
  ISOLA_TRY(ActAs scope, ActAs::user(user));
  Fd inotify(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  if (!inotify) return sys_error("cannot watch folders");
  auto channel = std::make_unique<WatchChannel>(loop, a, std::move(user), std::move(inotify));
  ISOLA_CHECK(channel->begin(local_only));
  return Mux::Opened{std::move(channel), {}};
}

}  // namespace isola::guest
