#include "server/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "image/oci_import.h"
#include "kernel/process.h"
#include "server/identity.h"
#include "server/puller.h"

namespace isola::server {

namespace {

constexpr std::string_view kStart = "start", kProve = "prove", kPull = "pull ";
constexpr size_t kMostPulls = 8;
constexpr unsigned kLongestPull = 3600;  // seconds

std::string start_launcher(const launcher::StartOptions& options, unsigned user) {
  auto started = launcher::Client::connect_or_start(options);
  // One that was there already may have been started for somebody else.
  auto admitted = started ? started->admit(user) : Result<void>(std::unexpected(started.error()));
  return admitted ? "" : admitted.error().message.substr(0, 4000);
}

struct Started {
  pid_t pid = 0;
  Fd report;
};

// A fetch that was killed, as by its alarm, leaves what it had: what was fetched, and somebody's credentials. Whoever
// forked here stays behind and sees to that; `isola` itself is its child, and returns.
void clean_up_after_a_pull(const std::string& cache_dir) {
  pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    return;
  }
  ::syscall(SYS_close_range, 0, ~0u, 0);  // the report ends with the fetch
  while (pid > 0 && ::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (pid > 0) (void)image::sweep_pulls(cache_dir);
  ::_exit(pid > 0 ? 0 : 127);
}

// `isola …` with its output into a pipe; what it complains about goes where our own words go. `seconds`: that it may
// take; 0: as long as it does.
Result<Started> start_isola(const launcher::StartOptions& options, std::vector<std::string> words, unsigned seconds = 0,
                            int input = -1) {
  ISOLA_TRY(auto pipe, kernel::make_pipe());
  words.insert(words.begin(), "isola");
  words.insert(words.end(), {"--json", "--data", options.data_dir});
  if (!options.cache_dir.empty()) words.insert(words.end(), {"--cache", options.cache_dir});
  pid_t pid = ::fork();
  if (pid < 0) return sys_error("cannot start `isola " + words[1] + "`");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGTERM, 0, 0, 0);
    for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGALRM}) ::signal(signal, SIG_DFL);
    if (words[1] == "template" && !options.cache_dir.empty()) clean_up_after_a_pull(options.cache_dir);
    ::alarm(seconds);  // stays through the exec; whatever it started ends with it
    ::dup2(pipe.second.get(), STDOUT_FILENO);
    if (input >= 0) ::dup2(input, STDIN_FILENO);
    ::syscall(SYS_close_range, 3, ~0u, 0);
    if (words[1] == "template") forget_operators_secrets();  // it talks to strangers; a proof may start a launcher
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  return Started{pid, std::move(pipe.first)};
}

Result<Fd> start_proving(const launcher::StartOptions& options, pid_t& running) {
  if (running > 0 && ::waitpid(running, nullptr, WNOHANG) == 0)
    return fail(Code::unavailable, "an earlier `isola prove` is still under way");
  running = 0;
  ISOLA_TRY(Started started, start_isola(options, {"prove"}));
  running = started.pid;
  return std::move(started.report);
}

// The server is asked by strangers: what it passes on is judged here again, and they do not have the credentials of
// this machine.
Result<Fd> start_pulling(const launcher::StartOptions& options, const std::vector<std::string>& registries,
                         const std::string& image, int credentials, std::set<pid_t>& running) {
  std::erase_if(running, [](pid_t pid) { return ::waitpid(pid, nullptr, WNOHANG) != 0; });
  ISOLA_CHECK(check_registry(registries, image));
  if (running.size() >= kMostPulls) return fail(Code::unavailable, "too many images are being fetched: try again");
  const char* how = credentials < 0 ? "--anonymous" : "--credentials-on-stdin";
  ISOLA_TRY(Started started, start_isola(options, {"template", "pull", how, image}, kLongestPull, credentials));
  running.insert(started.pid);
  return std::move(started.report);
}

// The whole life of the keeper. There are three things that it can be asked for, and one argument: the name of an
// image, and with it perhaps a pipe with somebody's credentials, which it passes on unread.
[[noreturn]] void keep(Fd socket, const launcher::StartOptions& options, unsigned user,
                       const std::vector<std::string>& registries) {
  ::setsid();
  ::prctl(PR_SET_NAME, "isola-keeper", 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  int kept = ::dup2(socket.release(), 3);
  ::syscall(SYS_close_range, 4, ~0u, 0);
  if (!options.cache_dir.empty()) (void)image::sweep_pulls(options.cache_dir);  // an earlier one was killed, too
  std::set<pid_t> pulling;
  for (pid_t proving = 0;;) {
    auto question = kernel::receive_message(kept, 1024);
    if (!question || question->bytes.empty()) ::_exit(0);  // the server is gone
    std::string answer;
    Fd report;
    if (question->bytes == kProve) {
      auto started = start_proving(options, proving);
      if (started)
        report = std::move(*started);
      else
        answer = started.error().message;
    } else if (question->bytes.starts_with(kPull)) {
      const int own = question->fds.empty() ? -1 : question->fds.front().get();
      auto started = start_pulling(options, registries, question->bytes.substr(kPull.size()), own, pulling);
      if (started)
        report = std::move(*started);
      else
        answer = started.error().message.substr(0, 4000);
    } else {
      answer = start_launcher(options, user);
    }
    std::vector<int> fds;
    if (report) fds.push_back(report.get());
    if (!kernel::send_message(kept, "." + answer, fds)) ::_exit(0);
  }
}

}  // namespace

Result<Keeper> Keeper::start(const launcher::StartOptions& options, unsigned user,
                             std::vector<std::string> registries) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return sys_error("cannot make a socket pair");
  Fd ours(ends[0]), theirs(ends[1]);
  pid_t pid = ::fork();
  if (pid < 0) return sys_error("cannot start the keeper");
  if (pid == 0) {
    // Twice, so that nobody has to wait for it.
    ours.reset();
    if (::fork() != 0) ::_exit(0);
    keep(std::move(theirs), options, user, registries);
  }
  ::waitpid(pid, nullptr, 0);
  return Keeper(std::move(ours));
}

Result<kernel::Message> Keeper::ask(std::string_view word, std::span<const int> fds) {
  std::lock_guard lock(*one_at_a_time_);
  ISOLA_CHECK(kernel::send_message(socket_.get(), word, fds));
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

Result<Fd> Keeper::pull(const std::string& image, const std::string& credentials) {
  Fd from;
  if (!credentials.empty()) {
    ISOLA_TRY(auto pipe, kernel::make_pipe());
    // All of it stays in the pipe until it is read: what does not fit is not waited for.
    if (::fcntl(pipe.second.get(), F_SETFL, O_NONBLOCK) < 0) return sys_error("cannot pass the credentials on");
    if (::write(pipe.second.get(), credentials.data(), credentials.size()) != static_cast<ssize_t>(credentials.size()))
      return fail(Code::invalid, "the credentials are too long");
    from = std::move(pipe.first);
  }
  std::vector<int> fds;
  if (from) fds.push_back(from.get());
  ISOLA_TRY(auto answer, ask(std::string(kPull) + image, fds));
  if (answer.fds.size() != 1) return fail(Code::internal, "the keeper sent no report");
  return std::move(answer.fds.front());
}

}  // namespace isola::server
