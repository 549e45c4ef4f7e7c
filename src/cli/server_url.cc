#include "cli/server_url.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/file.h"

namespace isola::cli {

namespace {

std::string file_of(const std::string& data_dir) { return data_dir + "/server.url"; }
std::string lock_of(const std::string& data_dir) { return data_dir + "/server.lock"; }

struct flock whole(short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

namespace {
enum class Lives { yes, no, unknown };

// Unknown to whoever may not look at the lock.
Lives look(const std::string& data_dir, pid_t* pid) {
  Fd file(::open(lock_of(data_dir).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return errno == EACCES ? Lives::unknown : Lives::no;
  struct flock lock = whole(F_WRLCK);
  if (::fcntl(file.get(), F_GETLK, &lock) < 0 || lock.l_type == F_UNLCK) return Lives::no;
  if (pid) *pid = lock.l_pid;
  return Lives::yes;
}
}  // namespace

std::optional<pid_t> find_server(const std::string& data_dir) {
  pid_t pid = 0;
  if (look(data_dir, &pid) != Lives::yes || pid <= 0) return std::nullopt;
  return pid;
}

std::optional<std::string> find_server_url(const std::string& data_dir) {
  if (look(data_dir, nullptr) == Lives::no) return std::nullopt;
  Fd file(::open(file_of(data_dir).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return std::nullopt;
  char text[512];
  ssize_t n = ::read(file.get(), text, sizeof text);
  if (n <= 0) return std::nullopt;
  std::string url(text, static_cast<size_t>(n));
  // The end of the line says that it is all there.
  if (auto end = url.find('\n'); end != std::string::npos) return url.substr(0, end);
  return std::nullopt;
}

Result<ServerUrl> ServerUrl::claim(const std::string& data_dir) {
  // Not the file with the URL: everybody may read that one, and whoever can open a file can lock it.
  const std::string locked = lock_of(data_dir), path = file_of(data_dir);
  Fd lock_file(::open(locked.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_file) return sys_error("cannot open " + locked);
  struct flock lock = whole(F_WRLCK);
  if (::fcntl(lock_file.get(), F_SETLK, &lock) < 0) {
    if (errno == EAGAIN || errno == EACCES) return fail(Code::exists, "a server runs on " + data_dir + " already");
    return sys_error("cannot lock " + locked);
  }
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file) return sys_error("cannot open " + path);
  if (::ftruncate(file.get(), 0) < 0) return sys_error("cannot clear " + path);
  return ServerUrl(std::move(file), std::move(lock_file));
}

ServerUrl::~ServerUrl() {
  if (file_ && ::ftruncate(file_.get(), 0) < 0) return;
}

Result<void> ServerUrl::publish(const std::string& url) {
  std::string line = url + "\n";
  if (::pwrite(file_.get(), line.data(), line.size(), 0) != static_cast<ssize_t>(line.size()))
    return sys_error("cannot write down the server's URL");
  return {};
}

}  // namespace isola::cli
