#include "guest/agent/file_streams.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "guest/agent/path.h"
#include "guest/agent/scratch.h"
#include "guest/agent/users.h"

namespace isola::guest {

namespace {

Result<void> must_be_regular(int fd, const std::string& path) {
  struct stat st;
  if (::fstat(fd, &st) < 0) return sys_error("cannot look at " + shown(path));
  if (S_ISDIR(st.st_mode)) return fail(Code::invalid, shown(path) + " is a folder", EISDIR);
  if (!S_ISREG(st.st_mode)) return fail(Code::invalid, shown(path) + " is not a regular file", EINVAL);
  return {};
}

class ReadChannel : public Channel {
 public:
  ReadChannel(Fd fd, uint64_t offset, uint64_t length) : fd_(std::move(fd)), at_(offset), left_(length) {}

  Step step() override {
    size_t want = std::min<uint64_t>(std::min<uint64_t>(room(), sizeof scratch), left_);
    if (want == 0 && left_ > 0) return Step::idle;
    ssize_t n = want >= kWorth && whole_ ? send_file(fd_.get(), at_, want) : -1;
    if (n < 0) {
      whole_ = whole_ && want < kWorth;  // what cannot be moved once is read from then on
      n = want == 0 ? 0 : ::pread(fd_.get(), scratch, want, static_cast<off_t>(at_));
      if (n > 0) send({scratch, static_cast<size_t>(n)});
    }
    if (n < 0) {
      finish(sys_error("cannot read the file"));
    } else if (n == 0) {
      finish(encode(Done{.bytes = sent_}));
    } else {
      at_ += static_cast<uint64_t>(n);
      left_ -= static_cast<uint64_t>(n);
      sent_ += static_cast<uint64_t>(n);
      return Step::again;
    }
    return Step::idle;
  }

 private:
  static constexpr size_t kWorth = 16 << 10;  // smaller portions are cheaper to copy
  Fd fd_;
  uint64_t at_, left_, sent_ = 0;
  bool whole_ = true;  // its pages can be moved
};

class WriteChannel : public Channel {
 public:
  WriteChannel(Write args, User user, Fd fd, Fd dir, std::string temporary)
      : args_(std::move(args)),
        user_(std::move(user)),
        fd_(std::move(fd)),
        dir_(std::move(dir)),
        temporary_(std::move(temporary)) {
    if (args_.how == WriteMode::at_offset) at_ = args_.offset;
  }
  ~WriteChannel() override {
    if (temporary_.empty()) return;
    if (auto scope = ActAs::user(user_)) ::unlinkat(dir_.get(), temporary_.c_str(), 0);
  }

  void on_data(std::string_view bytes) override {
    size_t size = bytes.size();
    while (!bytes.empty()) {
      ssize_t n = args_.how == WriteMode::append
                      ? ::write(fd_.get(), bytes.data(), bytes.size())
                      : ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(at_));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return finish(sys_error("cannot write " + shown(args_.path)));
      at_ += static_cast<uint64_t>(n);
      written_ += static_cast<uint64_t>(n);
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    grant(static_cast<uint32_t>(size));
    // A large one: nothing of it is kept here, so more of it may be under way, and fewer turns are taken.
    if (size == kMaxPayload && !std::exchange(wide_, true)) grant(kMostCredit - kGuestWindow);
  }

  void on_eof() override { finish(complete()); }

 private:
  Result<std::string> complete() {
    if (args_.sync && ::fsync(fd_.get()) < 0) return sys_error("cannot sync " + shown(args_.path));
    if (!temporary_.empty()) {
      ISOLA_TRY(ActAs scope, ActAs::user(user_));
      auto name = split(args_.path).name;
      if (::renameat(dir_.get(), temporary_.c_str(), dir_.get(), name.c_str()) < 0) {
        return sys_error("cannot replace " + shown(args_.path));
      }
      temporary_.clear();
      if (args_.sync && ::fsync(dir_.get()) < 0) return sys_error("cannot sync the folder of " + shown(args_.path));
    }
    return encode(Done{.bytes = written_});
  }

  Write args_;
  User user_;
  Fd fd_, dir_;
  std::string temporary_;  // in dir_: to be renamed, or removed when it does not come to that
  uint64_t at_ = 0, written_ = 0;
  bool wide_ = false;
};

std::string temporary_name() {
  unsigned char random[12];
  if (::getrandom(random, sizeof random, 0) != sizeof random) random[0] = static_cast<unsigned char>(::getpid());
  std::string out = ".isola-";
  for (unsigned char c : random) out += "abcdefghijklmnopqrstuvwxyz012345"[c % 32];
  return out;
}

int open_flags(WriteMode how) {
  switch (how) {
    case WriteMode::truncate: return O_CREAT;  // truncated only after it is known to be a regular file
    case WriteMode::append: return O_CREAT | O_APPEND;
    case WriteMode::at_offset: return O_CREAT;
    default: return O_CREAT | O_EXCL;
  }
}

}  // namespace

Result<Mux::Opened> open_read(const Read& a) {
  Fd fd(::open(a.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return sys_error("cannot open " + shown(a.path));
  ISOLA_CHECK(must_be_regular(fd.get(), a.path));
  if (a.offset > INT64_MAX) return fail(Code::invalid, "an offset that no file has");
  ISOLA_TRY(Stat st, stat_at(fd.get(), "", true));
  return Mux::Opened{std::make_unique<ReadChannel>(std::move(fd), a.offset, a.length), encode(st)};
}

Result<Mux::Opened> open_write(const Write& a) {
  if (a.offset > INT64_MAX) return fail(Code::invalid, "an offset that no file has");
  ISOLA_TRY(User user, resolve_user(a.user));
  std::optional<User> owner;
  if (!a.owner.empty()) {
    ISOLA_TRY(owner, resolve_user(a.owner));
  }
  if (a.parents) ISOLA_CHECK(make_parents(a.path, 0755));
  int flags = open_flags(a.how) | O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  Fd fd, dir;
  std::string temporary;
  if (a.how == WriteMode::replace) {
    auto [parent, name] = split(a.path);
    if (name.empty() || name == "." || name == "..") return fail(Code::invalid, shown(a.path) + " is a folder", EISDIR);
    dir = Fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!dir) return sys_error("cannot open the folder " + shown(parent));
    temporary = temporary_name();
    fd = Fd(::openat(dir.get(), temporary.c_str(), flags | O_NOFOLLOW, a.mode & 07777));
  } else {
    fd = Fd(::open(a.path.c_str(), flags, a.mode & 07777));
  }
  if (!fd) return sys_error("cannot open " + shown(a.path));
  int file = fd.get();
  auto channel = std::make_unique<WriteChannel>(a, std::move(user), std::move(fd), std::move(dir),
                                                temporary);  // cleans up from here on
  ISOLA_CHECK(must_be_regular(file, a.path));
  // An empty one is left alone: emptying it would be a change that watchers see.
  struct stat st;
  bool full = ::fstat(file, &st) < 0 || st.st_size > 0;
  if (a.how == WriteMode::truncate && full && ::ftruncate(file, 0) < 0)
    return sys_error("cannot empty " + shown(a.path));
  if (owner && ::fchown(file, owner->uid, owner->gid) < 0) return sys_error("cannot give away " + shown(a.path));
  return Mux::Opened{std::move(channel), encode(Done{})};
}

}  // namespace isola::guest
