#include "guest/agent/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "base/fd.h"

#if defined(__clang__) || defined(__GNUC__)
#define ISOLA_NO_SANITIZE __attribute__((no_sanitize("address", "undefined", "thread")))
#endif

namespace isola::guest {

namespace {

constexpr char kOpensslConf[] = "OPENSSL_CONF=/dev/.isola/openssl.cnf";
constexpr char kPath[] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

enum class SpawnStage { none, ids, cwd, exec };

struct Spawn {
  char* const* argv;
  char* const* envp;
  char* const* candidates;  // paths to try, in order
  char** shell_argv;        // {"/bin/sh", candidate, argv[1]…}: for scripts without #!
  const char* cwd;
  bool cwd_optional;
  const User* user;
  Stdio stdio;
  SpawnStage stage = SpawnStage::none;  // where it failed, and why
  int error = 0;
};

char oom_score[8];
size_t oom_score_size = 0;

ISOLA_NO_SANITIZE void put(int from, int to) {
  if (from < 0)
    ::close(to);
  else
    ::dup2(from, to);
}

ISOLA_NO_SANITIZE int exec_child(void* raw) {
  auto* s = static_cast<Spawn*>(raw);
  auto failed = [s](SpawnStage stage, int error) {
    s->stage = stage;
    s->error = error;
    ::syscall(SYS_exit_group, 127);
  };
  ::setsid();
  put(s->stdio.in, 0);
  put(s->stdio.out, 1);
  put(s->stdio.err, 2);
  if (s->stdio.pty) ::ioctl(0, TIOCSCTTY, 0);
  ::syscall(SYS_close_range, 3U, ~0U, 0U);
  ::umask(022);
  const User& u = *s->user;
  // Groups, gid, uid: after the last one there is no privilege left to set the others. Raw calls, because glibc's
  // wrappers talk to other threads, and here we are a guest in our parent's memory.
  if (::syscall(SYS_setgroups, u.groups.size(), u.groups.data()) < 0) failed(SpawnStage::ids, errno);
  if (::syscall(SYS_setresgid, u.gid, u.gid, u.gid) < 0) failed(SpawnStage::ids, errno);
  if (::syscall(SYS_setresuid, u.uid, u.uid, u.uid) < 0) failed(SpawnStage::ids, errno);
  if (::chdir(s->cwd) < 0 && (!s->cwd_optional || ::chdir("/") < 0)) failed(SpawnStage::cwd, errno);
  uint64_t none = 0;
  ::syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, nullptr, sizeof none);
  int error = ENOENT;
  for (auto path = s->candidates; *path; ++path) {
    ::execve(*path, s->argv, s->envp);
    if (errno == ENOEXEC) {
      s->shell_argv[1] = *path;
      ::execve("/bin/sh", s->shell_argv, s->envp);
      errno = ENOEXEC;
    }
    // A folder of the PATH that is missing or closed to us is passed over; "found but not allowed" is remembered.
    if (errno == EACCES)
      error = EACCES;
    else if (errno != ENOENT && errno != ENOTDIR) {
      error = errno;
      break;
    }
  }
  failed(SpawnStage::exec, error);
  return 127;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  out.reserve(strings.size() + 1);
  for (auto& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

// A caller's variable takes the place of a default of the same name. Among the caller's own nothing is compared: there
// can be a hundred thousand of them.
void set_env(std::vector<std::string>& env, const std::vector<std::string>& more) {
  auto defaults = static_cast<std::ptrdiff_t>(std::min<size_t>(env.size(), 64));
  for (const auto& v : more) {
    auto end = env.begin() + defaults;
    auto same = std::find_if(env.begin(), end, [&](const auto& e) { return name_of(e) == name_of(v); });
    if (same != end)
      *same = v;
    else
      env.push_back(v);
  }
}

std::vector<std::string> candidates_for(const std::string& command, const std::vector<std::string>& env) {
  if (command.find('/') != std::string::npos) return {command};
  std::string_view path = std::string_view(kPath).substr(5);
  for (const auto& v : env) {
    if (v.starts_with("PATH=")) path = std::string_view(v).substr(5);
  }
  std::vector<std::string> out;
  while (out.size() < 256) {
    auto end = path.find(':');
    std::string dir(path.substr(0, end));
    out.push_back((dir.empty() ? "." : dir) + "/" + command);
    if (end == path.npos) break;
    path.remove_prefix(end + 1);
  }
  return out;
}

Error explain(const Spawn& s, const Start& start) {
  std::string command = start.argv[0].substr(0, 200);
  auto of = [](std::string text, int error) { return sys_error(text, error).error(); };
  switch (s.stage) {
    case SpawnStage::ids: return of("cannot become user " + start.user, s.error);
    // The caller's mistake, not a missing command: `isola run` tells the two apart by the code.
    case SpawnStage::cwd:
      return {Code::invalid, of("cannot enter the working directory " + std::string(s.cwd), s.error).message, s.error};
    default: break;
  }
  switch (s.error) {
    case ENOENT: return {Code::not_found, "no such command: " + command, ENOENT};
    case EACCES: return {Code::denied, "not allowed to execute: " + command, EACCES};
    case E2BIG: return {Code::invalid, "the arguments and environment are too long for one command", E2BIG};
    default: return of("cannot execute " + command, s.error);
  }
}

// When the memory limit is reached, programs shall die before the guest. Set from here and not by the child itself:
// until its exec the child has the guest's memory, whose files in /proc are nobody's. One that forks before this is
// done keeps the guest's score; all it can win by that is the end of its own sandbox.
void make_first_victim(pid_t pid) {
  if (oom_score_size == 0) return;
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/oom_score_adj", pid);
  Fd fd(::open(path, O_WRONLY | O_CLOEXEC));
  if (fd) [[maybe_unused]]
    auto n = ::write(fd.get(), oom_score, oom_score_size);
}

}  // namespace

void prepare_oom_score() {
  char text[16] = {};
  Fd fd(::open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC));
  if (!fd || ::read(fd.get(), text, sizeof text - 1) <= 0) return;
  int n = std::snprintf(oom_score, sizeof oom_score, "%d", std::min(1000, std::atoi(text) + 300));
  oom_score_size = static_cast<size_t>(n);
}

Result<pid_t> spawn(const Start& start, const User& user, const std::vector<std::string>& defaults,
                    const Stdio& stdio) {
  if (start.argv.empty() || start.argv[0].empty()) return fail(Code::invalid, "no command given");
  for (const auto& list : {&start.argv, &start.env}) {
    for (const auto& s : *list) {
      if (s.find('\0') != std::string::npos) return fail(Code::invalid, "arguments cannot hold a zero byte");
    }
  }
  std::vector<std::string> env;
  if (!start.replace_env) {
    env = {kPath, "HOME=" + user.home, "USER=" + user.name, "LOGNAME=" + user.name, "LANG=C.UTF-8"};
    // Else a shell looks it up itself, which is a program's libraries and a few files for each.
    if (!user.shell.empty()) env.push_back("SHELL=" + user.shell);
    // Where the launcher put one: random numbers that a fork of the sandbox does not repeat (guest/entropy).
    static const bool own_entropy = ::access(kOpensslConf + sizeof "OPENSSL_CONF", R_OK) == 0;
    if (own_entropy) env.push_back(kOpensslConf);
    if (stdio.pty) env.push_back("TERM=xterm-256color");
    set_env(env, defaults);
  }
  set_env(env, start.env);

  std::vector<std::string> argv = start.argv, paths = candidates_for(start.argv[0], env);
  auto argv_p = pointers(argv), env_p = pointers(env), path_p = pointers(paths), shell_p = argv_p;
  char sh[] = "/bin/sh";
  shell_p[0] = sh;
  shell_p.insert(shell_p.begin() + 1, nullptr);

  Spawn s{argv_p.data(),
          env_p.data(),
          path_p.data(),
          shell_p.data(),
          start.cwd.empty() ? user.home.c_str() : start.cwd.c_str(),
          start.cwd.empty(),
          &user,
          stdio};
  alignas(16) static char stack[64 << 10];
  int pid = ::clone(exec_child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &s);
  if (pid < 0) {
    if (errno == EAGAIN) return fail(Code::exhausted, "cannot start another process: the limit is reached", EAGAIN);
    return sys_error("cannot start a process");
  }
  if (s.stage == SpawnStage::none) {
    make_first_victim(pid);
    return pid;
  }
  int status;
  ::waitpid(pid, &status, 0);
  return std::unexpected(explain(s, start));
}

}  // namespace isola::guest
