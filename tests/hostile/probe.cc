#include "probe.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace isola::hostile {

std::string env(const char* name) {
  const char* value = ::getenv(name);
  return value ? value : "";
}

std::string canary_file() { return env("ISOLA_CANARY_FILE"); }

std::string work_dir() {
  std::string dir = env("ISOLA_WORK");
  return dir.empty() ? "/tmp" : dir;
}

std::optional<std::string> slurp(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return std::nullopt;
  std::string text(65536, '\0');
  ssize_t n = ::read(fd, text.data(), text.size());
  int saved = errno;
  ::close(fd);
  errno = saved;
  if (n < 0) return std::nullopt;
  text.resize(static_cast<size_t>(n));
  return text;
}

int spill(const std::string& path, std::string_view bytes) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return -1;
  ssize_t n = ::write(fd, bytes.data(), bytes.size());
  int saved = errno;
  ::close(fd);
  errno = saved;
  return n < 0 ? -1 : 0;
}

int write_back(const std::string& path) {
  auto text = slurp(path);
  if (!text) return -1;
  if (text->empty()) *text = "\n";
  return spill(path, *text);
}

bool read_host_file(Attempts& attempts, const std::string& path) {
  auto text = slurp(path);
  if (!text) {
    attempts.add("open " + path, -1);
    return false;
  }
  ::printf("%s\n", text->c_str());
  attempts.worked("read " + path);
  return true;
}

std::vector<int> all_pids() {
  std::vector<int> pids;
  DIR* dir = ::opendir("/proc");
  if (!dir) return pids;
  while (dirent* entry = ::readdir(dir)) {
    int pid = ::atoi(entry->d_name);
    if (pid > 0) pids.push_back(pid);
  }
  ::closedir(dir);
  return pids;
}

int target_pid() {
  std::string text = env("ISOLA_TARGET_PID");
  return text.empty() ? 1 : ::atoi(text.c_str());
}

bool in_first_user_namespace() {
  auto map = slurp("/proc/self/uid_map");
  unsigned inside = 1, outside = 1, count = 0;
  return map && ::sscanf(map->c_str(), "%u %u %u", &inside, &outside, &count) == 3 && inside == 0 && outside == 0 &&
         count == 4294967295u;
}

long now_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

bool wait_until(long milliseconds, const std::function<bool()>& condition) {
  long end = now_ms() + milliseconds;
  while (!condition()) {
    if (now_ms() >= end) return false;
    ::poll(nullptr, 0, 10);
  }
  return true;
}

Outcome in_child(const std::function<Outcome()>& run) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return untried("pipe: " + errno_name(errno));
  ::fflush(nullptr);
  pid_t child = ::fork();
  if (child < 0) return contained("fork: " + errno_name(errno));
  if (child == 0) {
    ::close(ends[0]);
    Outcome outcome = run();
    ::fflush(nullptr);
    ssize_t n = ::write(ends[1], outcome.how.data(), outcome.how.size());
    ::_exit(n < 0 ? 1 : outcome.kind);
  }
  ::close(ends[1]);
  std::string how;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) how.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) return contained(fmt::format("killed by SIG{}", ::sigabbrev_np(WTERMSIG(status))));
  return {static_cast<Outcome::Kind>(WEXITSTATUS(status)), how};
}

}  // namespace isola::hostile
