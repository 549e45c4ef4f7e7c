#include "launcher/vault_fetch.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "base/file.h"
#include "kernel/capability.h"
#include "kernel/process.h"
#include "launcher/fixed_users.h"

namespace isola::launcher {

namespace {

using std::chrono::steady_clock;

constexpr size_t kMostAnswer = 256 << 10, kMostComplaint = 512;

// In the child.
int become_fetcher(uid_t user, gid_t group, int in, int out, int errors, const char* authorities) {
  rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  if (::dup2(in, 0) < 0 || ::dup2(out, 1) < 0 || ::dup2(errors, 2) < 0) return 1;
  if (::syscall(SYS_close_range, 3, ~0u, 0) < 0) return 1;
  if (user != 0 &&
      (::setgroups(0, nullptr) < 0 || ::setresgid(group, group, group) < 0 || ::setresuid(user, user, user) < 0))
    return 1;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);  // after the change of user, which would undo it
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0) return 1;
  const char* arguments[] = {"isola", "vault-fetch", *authorities ? "--authorities" : nullptr, authorities, nullptr};
  const char* environment[] = {"PATH=/usr/local/bin:/usr/bin:/bin", nullptr};
  ::execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
  return 1;
}

// What comes until the end, at most so much. timeout: not in time.
Result<vault::Secret> read_until(int fd, size_t most, steady_clock::time_point until) {
  vault::Secret buffer = vault::Secret::of_size(most);
  size_t size = 0;
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock::now()).count();
    pollfd ready{fd, POLLIN, 0};
    int n = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return fail(Code::timeout, "it did not answer in time");
    if (size == most) return fail(Code::invalid, "its answer is too large");
    ssize_t got = ::read(fd, buffer.data() + size, most - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return sys_error("cannot read the answer");
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  return vault::Secret(buffer.view().substr(0, size));
}

// Until it has ended, or the time is over: then it is killed.
int await_end(const kernel::Child& child, steady_clock::time_point until) {
  for (;;) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock::now()).count();
    pollfd ready{child.pidfd.get(), POLLIN, 0};
    int n = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) (void)kernel::send_signal(child.pidfd.get(), SIGKILL);
    break;
  }
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

Result<vault::Secret> from_environment(const std::string& name) {
  if (!name.starts_with(vault::kEnvPrefix))
    return fail(Code::denied, "only variables whose names begin with " + std::string(vault::kEnvPrefix) + " are read");
  const char* value = std::getenv(name.c_str());
  if (!value) return fail(Code::not_found, "the launcher was started without the variable " + name);
  return vault::Secret(value);
}

}  // namespace

const uint64_t kFetchCapabilities =
    kernel::capability(CAP_SETUID) | kernel::capability(CAP_SETGID) | kernel::capability(CAP_KILL);

Result<vault::Made> fetch_value(const vault::Source& source, const FetchAs& who, steady_clock::time_point until) {
  auto named = [&](const Error& error) {
    return std::unexpected(error.in("the source (" + std::string(to_string(source.type)) + ")"));
  };
  if (source.type == vault::Source::Type::env) {
    auto value = from_environment(source.name);
    if (!value) return named(value.error());
    auto fits = vault::value_in(source, value->view());
    if (!fits) return named(fits.error());
    return vault::Made{.value = std::move(*fits)};
  }
  // Nobody's user is no reason to read as root what somebody with a key of the server's named.
  if (vault::is_of_machine(source) && who.user == 0)
    return named({Code::unavailable, "no server's user is known yet, and as root nothing is read"});
  const uid_t as = vault::is_of_machine(source) ? who.user : kNobody;
  gid_t group = as;
  if (const passwd* known = ::getpwuid(as)) group = known->pw_gid;
  ISOLA_TRY(auto in, kernel::make_pipe());
  ISOLA_TRY(auto out, kernel::make_pipe());
  ISOLA_TRY(auto errors, kernel::make_pipe());
  ISOLA_TRY(auto child, kernel::spawn(0, [&] {
              return become_fetcher(as, group, in.first.get(), out.second.get(), errors.second.get(),
                                    who.authorities.c_str());
            }));
  in.first.reset();
  out.second.reset();
  errors.second.reset();
  ::signal(SIGPIPE, SIG_IGN);
  std::string text = vault::to_kept(source);  // fits into the pipe
  auto said = write_all(in.second.get(), text);
  vault::wipe(text);
  in.second.reset();
  auto answer = said ? read_until(out.first.get(), kMostAnswer, until) : std::unexpected(said.error());
  if (!answer) (void)kernel::send_signal(child.pidfd.get(), SIGKILL);
  const int status = await_end(child, until);
  if (!answer) return named(answer.error());
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    // What somebody's program complains about is not for logs and replies: it may be the value.
    if (source.type == vault::Source::Type::command) return named({Code::unavailable, "the command failed"});
    auto why = read_until(errors.first.get(), kMostComplaint, until);
    std::string words = why ? std::string(why->view()) : std::string();
    while (words.ends_with('\n')) words.pop_back();
    return named({Code::unavailable, words.empty() ? "it could not be fetched" : words});
  }
  if (source.type == vault::Source::Type::github_app) {
    auto now = std::chrono::system_clock::now().time_since_epoch();
    auto made =
        vault::read_github_answer(answer->view(), std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
    if (!made) return named(made.error());
    return made;
  }
  auto value = vault::value_in(source, answer->view());
  if (!value) return named(value.error());
  return vault::Made{.value = std::move(*value)};
}

}  // namespace isola::launcher
