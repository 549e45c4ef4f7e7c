#include "image/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "base/fd.h"
#include "kernel/fault.h"

namespace isola::image {

namespace {

namespace fault = kernel::fault;

constexpr const char* kPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// What a package tool needs to reach the machine's configured sources; everything else of the caller's environment
// (tokens, language, tool settings) stays out.
bool passed_on(std::string_view entry) {
  static constexpr std::string_view kNames[] = {
      "http_proxy=", "https_proxy=", "no_proxy=",      "HTTP_PROXY=",   "HTTPS_PROXY=",
      "NO_PROXY=",   "HOME=",        "SSL_CERT_FILE=", "SSL_CERT_DIR=", "TMPDIR="};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](auto name) { return entry.starts_with(name); });
}

std::vector<std::string> environment(const Command& command) {
  std::vector<std::string> env = {std::string("PATH=") + kPath, "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"};
  // Of two entries with one name a program sees the first: what the command says goes before the caller's.
  auto said = [&](std::string_view entry) {
    std::string_view name = entry.substr(0, entry.find('=') + 1);
    return std::any_of(command.env.begin(), command.env.end(), [&](const auto& one) { return one.starts_with(name); });
  };
  for (char** e = environ; *e; ++e)
    if (passed_on(*e) && !said(*e)) env.emplace_back(*e);
  env.insert(env.end(), command.env.begin(), command.env.end());
  return env;
}

// The last lines written after offset `from`.
std::string tail_of(int fd, off_t from, size_t lines) {
  off_t size = ::lseek(fd, 0, SEEK_END);
  std::string text(static_cast<size_t>(std::clamp<off_t>(size - from, 0, 4096)), '\0');
  ssize_t n = ::pread(fd, text.data(), text.size(), size - static_cast<off_t>(text.size()));
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  // A progress bar redraws its line with a carriage return: what counts is what was drawn last.
  std::replace(text.begin(), text.end(), '\r', '\n');
  while (!text.empty() && text.back() == '\n') text.pop_back();
  size_t at = text.size();
  for (; lines > 0 && at != std::string::npos && at > 0; --lines) at = text.rfind('\n', at - 1);
  if (at != std::string::npos && at > 0) text.erase(0, at + 1);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 && c != '\n') c = ' ';
  return text;
}

class Actions {
 public:
  Actions() { ::posix_spawn_file_actions_init(&raw_); }
  ~Actions() { ::posix_spawn_file_actions_destroy(&raw_); }
  Actions(const Actions&) = delete;
  Actions& operator=(const Actions&) = delete;
  posix_spawn_file_actions_t* get() { return &raw_; }

 private:
  posix_spawn_file_actions_t raw_;
};

Result<int> wait_for(pid_t pid, const std::function<void()>& tick) {
  Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  int status = 0;
  while (pidfd) {
    pollfd p{.fd = pidfd.get(), .events = POLLIN, .revents = 0};
    int n = ::poll(&p, 1, 1000);
    if (n > 0 || (n < 0 && errno != EINTR)) break;
    if (n == 0 && tick) tick();
  }
  while (::waitpid(pid, &status, 0) < 0)
    if (errno != EINTR) return sys_error("cannot wait for a program");
  return status;
}

Result<void> run_into(const Command& command, int out, int err) {
  std::vector<std::string> args;
  if (command.contained)
    args = {"setpriv", "--pdeathsig", "KILL",         "unshare", "--mount",           "--propagation",
            "private", "--pid",       "--mount-proc", "--fork",  "--kill-child=KILL", "--"};
  args.insert(args.end(), command.argv.begin(), command.argv.end());
  auto env = environment(command);
  std::vector<char*> argv, envp;
  for (auto& a : args) argv.push_back(a.data());
  for (auto& e : env) envp.push_back(e.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  ISOLA_TRY(std::string program, find_program(args[0]));
  ISOLA_CHECK(find_program(command.argv[0]));
  if (int e = fault::at("spawn")) return sys_error(command.what + ": cannot start " + command.argv[0], e);
  Actions actions;
  if (command.input >= 0)
    ::posix_spawn_file_actions_adddup2(actions.get(), command.input, 0);
  else
    ::posix_spawn_file_actions_addopen(actions.get(), 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(actions.get(), out, 1);
  ::posix_spawn_file_actions_adddup2(actions.get(), err, 2);
  ::posix_spawn_file_actions_addclosefrom_np(actions.get(), 3);
  off_t start = ::lseek(err, 0, SEEK_END);
  pid_t pid = 0;
  if (int e = ::posix_spawn(&pid, program.c_str(), actions.get(), nullptr, argv.data(), envp.data()))
    return sys_error(command.what + ": cannot start " + command.argv[0], e);
  auto status = wait_for(pid, [&] {
    if (command.tick) command.tick(tail_of(err, start, 1));
  });
  if (!status) return std::unexpected(status.error());
  const bool good = WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
  if (good && (!command.strict || ::lseek(err, 0, SEEK_END) == start)) return {};
  std::string how = good                   ? "gave a warning"
                    : WIFSIGNALED(*status) ? std::string("was ended by ") + ::strsignal(WTERMSIG(*status))
                                           : "failed with exit code " + std::to_string(WEXITSTATUS(*status));
  std::string tail = tail_of(err, start, 12);
  return fail(Code::internal, command.what + ": " + command.argv[0] + " " + how + (tail.empty() ? "" : ":\n" + tail));
}

Result<Fd> memory_file() {
  Fd fd(::memfd_create("output", MFD_CLOEXEC));
  if (!fd) return sys_error("cannot make a buffer");
  return fd;
}

Result<Fd> open_log(const Command& command) {
  if (command.log.empty()) return memory_file();
  Fd fd(::open(command.log.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!fd) return sys_error("cannot open the log " + command.log);
  return fd;
}

}  // namespace

Result<std::string> find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  std::string_view path = kPath;
  while (!path.empty()) {
    auto colon = path.find(':');
    std::string full = std::string(path.substr(0, colon)) + "/" + name;
    if (::access(full.c_str(), X_OK) == 0) return full;
    path = colon == std::string_view::npos ? std::string_view() : path.substr(colon + 1);
  }
  return fail(Code::not_found, "the program " + name + " is not installed");
}

Result<void> run(const Command& command) {
  ISOLA_TRY(Fd log, open_log(command));
  return run_into(command, log.get(), log.get());
}

Result<std::string> run_output(const Command& command) {
  ISOLA_TRY(Fd out, memory_file());
  ISOLA_TRY(Fd log, open_log(command));
  ISOLA_CHECK(run_into(command, out.get(), log.get()));
  std::string text(static_cast<size_t>(std::clamp<off_t>(::lseek(out.get(), 0, SEEK_END), 0, 4 << 20)), '\0');
  ssize_t n = ::pread(out.get(), text.data(), text.size(), 0);
  if (n < 0) return sys_error("cannot read the output of " + command.argv[0]);
  text.resize(static_cast<size_t>(n));
  return text;
}

}  // namespace isola::image
