#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace isola::behaviour {

std::string errno_name(int error) {
  const char* name = ::strerrorname_np(error);
  return name ? name : "errno " + std::to_string(error);
}

Answer failed(std::string_view what, int error) {
  const bool missing = error == ENOSYS || error == EOPNOTSUPP || error == EAFNOSUPPORT || error == EPROTONOSUPPORT;
  return {missing ? Answer::missing : Answer::differs, std::string(what) + ": " + errno_name(error)};
}

Answer refused(std::string_view what, long result, int wanted) {
  if (result >= 0) return differs(std::string(what) + ": works, instead of " + errno_name(wanted));
  if (errno == wanted) return ok();
  int error = errno;
  Answer answer = failed(what, error);
  answer.text += " instead of " + errno_name(wanted);
  return answer;
}

std::string slurp(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  std::string text;
  char buffer[65536];
  ssize_t n = 0;
  while (fd >= 0 && text.size() < (64 << 20) && (n = ::read(fd, buffer, sizeof buffer)) > 0)
    text.append(buffer, static_cast<size_t>(n));
  if (fd >= 0) ::close(fd);
  return text;
}

bool spill(const std::string& path, std::string_view text, mode_t mode) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
  if (fd < 0) return false;
  bool whole = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  return ::close(fd) == 0 && whole;
}

int scratch_file(std::string_view text, const char* name) {
  int fd = ::open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd >= 0 && (::write(fd, text.data(), text.size()) < 0 || ::lseek(fd, 0, SEEK_SET) < 0)) return -1;
  return fd;
}

std::string line_of(const std::string& text, std::string_view start) {
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    if (line.starts_with(start)) return std::string(line.substr(start.size()));
    at = end + 1;
  }
  return "";
}

int end_of(pid_t child) {
  int status = 0;
  if (child < 0) return -1;
  while (::waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string own(const char* what) { return std::string("/proc/self/") + what; }

bool readable(int fd, int milliseconds) {
  pollfd ready{fd, POLLIN, 0};
  return ::poll(&ready, 1, milliseconds) == 1;
}

long now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

pid_t fork_child() {
  pid_t parent = ::getpid(), child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(99);  // it was quicker
  return 0;
}

void leave(int code) { ::_exit(code); }

}  // namespace isola::behaviour
