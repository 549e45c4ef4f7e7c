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

// The whole life of the keeper. It takes no argument from the server: there is only one thing it can be asked for.
[[noreturn]] void keep(Fd socket, const launcher::StartOptions& options, unsigned user) {
  ::setsid();
  ::prctl(PR_SET_NAME, "isola-keeper", 0, 0, 0);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) ::signal(signal, SIG_IGN);
  int kept = ::dup2(socket.release(), 3);
  ::syscall(SYS_close_range, 4, ~0u, 0);
  for (;;) {
    auto question = kernel::receive_message(kept, 16);
    if (!question || question->bytes.empty()) ::_exit(0);  // the server is gone
    auto started = launcher::Client::connect_or_start(options);
    // One that was there already may have been started for somebody else.
    auto admitted = started ? started->admit(user) : Result<void>(std::unexpected(started.error()));
    std::string answer = admitted ? "" : admitted.error().message.substr(0, 4000);
    if (!kernel::send_message(kept, "." + answer)) ::_exit(0);
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

Result<void> Keeper::start_launcher() {
  ISOLA_CHECK(kernel::send_message(socket_.get(), "start"));
  ISOLA_TRY(auto answer, kernel::receive_message(socket_.get(), 8192));
  if (answer.bytes.empty()) return fail(Code::unavailable, "the keeper is gone: restart the server");
  if (answer.bytes.size() > 1) return fail(Code::unavailable, answer.bytes.substr(1));
  return {};
}

}  // namespace isola::server
