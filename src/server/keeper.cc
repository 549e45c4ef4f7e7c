#include "server/keeper.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel/process.h"

namespace isola::server {

namespace {

constexpr std::string_view kStart = "start", kProve = "prove";

std::string start_launcher(const launcher::StartOptions& options, unsigned user) {
  auto started = launcher::Client::connect_or_start(options);
  // One that was there already may have been started for somebody else.
  auto admitted = started ? started->admit(user) : Result<void>(std::unexpected(started.error()));
  return admitted ? "" : admitted.error().message.substr(0, 4000);
}

// `isola prove --json` into a pipe; what it complains about goes where our own words go.
Result<Fd> start_proving(const launcher::StartOptions& options, pid_t& running) {
  if (running > 0 && ::waitpid(running, nullptr, WNOHANG) == 0)
    return fail(Code::unavailable, "an earlier `isola prove` is still under way");
  running = 0;
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  running = ::fork();
  if (running < 0) return sys_error("cannot start `isola prove`");
  if (running == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_DFL);
    ::dup2(pipe.second.get(), STDOUT_FILENO);
    ::syscall(SYS_close_range, 3, ~0u, 0);
    const char* words[] = {"isola", "prove", "--json", "--data", options.data_dir.c_str(), nullptr, nullptr, nullptr};
    if (!options.cache_dir.empty()) words[5] = "--cache", words[6] = options.cache_dir.c_str();
    ::execv("/proc/self/exe", const_cast<char**>(words));
    ::_exit(127);
  }
  return std::move(pipe.first);
}

// The whole life of the keeper. It takes no argument from the server: there are only two things it can be asked for.
[[noreturn]] void keep(Fd socket, const launcher::StartOptions& options, unsigned user) {
  ::setsid();
  ::prctl(PR_SET_NAME, "isola-keeper", 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  int kept = ::dup2(socket.release(), 3);
  ::syscall(SYS_close_range, 4, ~0u, 0);
  for (pid_t proving = 0;;) {
    auto question = kernel::receive_message(kept, 16);
    if (!question || question->bytes.empty()) ::_exit(0);  // the server is gone
    std::string answer;
    Fd report;
    if (question->bytes == kProve) {
      auto started = start_proving(options, proving);
      if (started)
        report = std::move(*started);
      else
        answer = started.error().message;
    } else {
      answer = start_launcher(options, user);
    }
    std::vector<int> fds;
    if (report) fds.push_back(report.get());
    if (!kernel::send_message(kept, "." + answer, fds)) ::_exit(0);
  }
}

}  // namespace

Result<Keeper> Keeper::start(const launcher::StartOptions& options, unsigned user) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return sys_error("cannot make a socket pair");
  Fd ours(ends[0]), theirs(ends[1]);
  pid_t pid = ::fork();
  if (pid < 0) return sys_error("cannot start the keeper");
  if (pid == 0) {
    // Twice, so that nobody has to wait for it.
    ours.reset();
    if (::fork() != 0) ::_exit(0);
    keep(std::move(theirs), options, user);
  }
  ::waitpid(pid, nullptr, 0);
  return Keeper(std::move(ours));
}

Result<kernel::Message> Keeper::ask(std::string_view word) {
  std::lock_guard lock(*one_at_a_time_);
  ISOLA_CHECK(kernel::send_message(socket_.get(), word));
  ISOLA_TRY(auto answer, kernel::receive_message(socket_.get(), 8192));
  if (answer.bytes.empty()) return fail(Code::unavailable, "the keeper is gone: restart the server");
  if (answer.bytes.size() > 1) return fail(Code::unavailable, answer.bytes.substr(1));
  return answer;
}

Result<void> Keeper::start_launcher() {
  ISOLA_CHECK(ask(kStart));
  return {};
}

Result<Fd> Keeper::prove() {
  ISOLA_TRY(auto answer, ask(kProve));
  if (answer.fds.size() != 1) return fail(Code::internal, "the keeper sent no report");
  return std::move(answer.fds.front());
}

}  // namespace isola::server
